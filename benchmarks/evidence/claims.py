"""The ten claims: what is asked, who answers, what the papers say, and what the answer does not show."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.evidence import answers, measured
from benchmarks.evidence.answers import Answer
from benchmarks.evidence.view import View


@dataclass(frozen=True)
class Claim:
    """`draw` writes the figures and names them. `command`: what makes or takes the figures anew."""

    number: int
    title: str
    question: str
    answer: Callable[[View], Answer]
    draw: Callable[[View, Path], list[str]]
    published: str
    not_shown: str
    command: str = ""


CLAIMS = (
    Claim(
        1,
        "Loss against tokens and against bytes",
        "Does SparseLoCo match DDP and DiLoCo at equal tokens, with 100 to 200 times fewer bytes a round?",
        answers.bytes_and_loss,
        answers.draw_bytes_and_loss,
        "SparseLoCo (arXiv 2508.15706), 512 M parameters, R = 8, H = 15, k = 128 of 4096: it sends 1 to 3 % of the "
        "values in 2 bits and ends below full-precision DiLoCo. DiLoCo (arXiv 2311.08105), eight workers: as good as "
        "synchronous training with 500 times fewer exchanges.",
        "Models are thousands of times smaller than the papers', with few tokens a parameter and few rounds. What "
        "error feedback has not sent when a run ends is lost, so a short run is SparseLoCo's worst case. DDP's bytes "
        "are one fp32 gradient a step. DiLoCo's momentum stays at the paper's 0.9, which few rounds may not suit.",
    ),
    Claim(
        2,
        "Error feedback, quantiser, bound on norms",
        "What does each part of SparseLoCo cost or give, when it alone is switched off?",
        answers.parts,
        answers.draw_parts,
        "SparseLoCo: error feedback takes the place of outer momentum, and 2 bits cost nothing.",
        "Honest peers only: what the bound on norms is for is claim 6. One rate for all, tuned with every part on.",
    ),
    Claim(
        3,
        "Peers",
        "How does the loss change with the number of peers at equal tokens, and with peers that come and go?",
        answers.peers,
        answers.draw_peers,
        "Covenant-72B: 16.9 contributors a round on average, at least 70 over the run; no figure of what that cost.",
        "Rates are those of eight peers. More peers have smaller batches here, since tokens are equal. All peers draw "
        "from one text.",
    ),
    Claim(
        4,
        "Optimizer and model size",
        "Is Muon inside better than AdamW, and does the gap to DDP close as models grow?",
        answers.sizes_and_optimizers,
        answers.draw_sizes,
        "No published fit that we know of.",
        "All sizes see equally many tokens, so larger ones are further from their end. Rates are tuned at the smallest "
        "size and fall as 1 / width. A straight line through a few sizes says nothing of 72 B.",
    ),
    Claim(
        5,
        "Waiting",
        "What do wrong guesses, overlap and void rounds cost the loss?",
        answers.waiting,
        answers.draw_waiting,
        "Eager updates for DiLoCo (arXiv 2502.12996): overlap is competitive with waiting.",
        "In a run a guess is wrong now and then, here always. A void round's work is not done again: such runs see "
        "their tokens, but fewer outer steps.",
    ),
    Claim(
        6,
        "Robust aggregation",
        "Which rule bears 10 to 40 % of contributors that collude, and what does it cost when nobody does?",
        answers.robust,
        answers.draw_robust,
        "Krum (Blanchard et al., 2017) and the trimmed mean (Yin et al., 2018) bear a minority in theory, on dense "
        "gradients that resemble each other.",
        "One attack (the honest mean turned round, with noise, at the honest norm), everybody selected as if all "
        "judges were fooled, ten rounds of ten peers, at rates tuned for 24 rounds of eight. An untrained model has "
        "5.48: above that, one has unlearned. Krum is given the number of colluders.",
    ),
    Claim(
        7,
        "Gauntlet",
        "How soon is each cheat found, does pay follow work, and who is thrown out wrongly?",
        measured.gauntlet,
        measured.draw_gauntlet,
        "Gauntlet (arXiv 2505.21684) reports a run of 1.2 B parameters that paid by contribution; no error rates.",
        "Attacks that nobody thought of; a majority that cheats; one that a third of the stake pays alone. The arena's "
        "model is a softmax regression; the transformer has 0.12 M parameters.",
        "murmur arena --suite standard --policy ours --json --seeds 3",
    ),
    Claim(
        8,
        "Codec",
        "How many bytes, what error, and how fast against the memory stream and against torch operators?",
        measured.codec,
        measured.draw_codec,
        "SparseLoCo's public code: 102 times fewer bytes than fp32 as it stores them, four bins a tensor.",
        "A CPU shared with other work; times within one run are comparable, others are not. GPUs: `--gpu`.",
    ),
    Claim(
        9,
        "A round's time",
        "How much of a round is compute, by plan and measured, and what does an hour of each part cost?",
        measured.rounds,
        measured.draw_rounds,
        "Covenant-72B: 94.5 % (20 min of compute, 70 s of communication; the stated links cannot carry that). "
        "INTELLECT-1: 95.7, 85.6 and 83.0 % (one country, with Europe, the world).",
        "No large run has been made. An hour costs what eight GPUs cost: each part its minutes of that.",
        "python benchmarks/bench_links.py --json",
    ),
    Claim(
        10,
        "Rounds that anybody can repeat",
        "What does it cost that a round begins without the miner's own optimizer state?",
        answers.carried,
        answers.draw_carried,
        "None that we know of: published runs keep AdamW's averages from round to round, each miner its own.",
        "Tiny models. Each state has its own best rates of seven trials as long as the runs, at H = 10; they fall as "
        "1 / width. AdamW's public form is not built. The corpus has another digest than the other claims'.",
    ),
)
