"""After pre-training: a run's theta as a model in the common format, its proof, and its evaluation.

Only the console command imports this package. transformers, lm-eval and other parts of the extra `post` are imported
here and nowhere else, and an export needs none of them.
"""
