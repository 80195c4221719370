"""After pre-training: a run's theta as a model that everybody's tools read, the proof, and what it is worth.

Only the console command knows this package; transformers, lm-eval and what else the extra `post` brings are imported
here and nowhere else, and none of it by an export.
"""
