"""What a simulated network comes to: counts of what broke, and figures (docs/simulation.md)."""

from dataclasses import dataclass, field


@dataclass
class Result:
    """The result of one `murmur simulate` run."""

    seed: int
    rounds: int
    faults: int = 0
    void_rounds: int = 0
    void_unexplained: int = 0
    disagreements: int = 0
    """Disagreements between honest nodes, or between one and the outcome of the votes on chain."""
    halted: bool = False
    honest_faults_booked: int = 0
    honest_late: int = 0
    """Rounds in which an honest miner did not commit in time, though nothing hit it: somebody kept it waiting."""
    recovery_rounds_p99: float = 0.0
    unobserved_weights: int = 0
    refused_weights: int = 0
    """Rows of honest validators that the chain accepted but did not put in force."""
    wasteful: int = 0
    """Rounds to which an honest node has committed too often."""
    unpaid: int = 0
    """Honest validators that had set no weights for too long at the end of a calm."""
    oldest_needed_checkpoint_rounds: int = 0
    honest_contributed: float = 0.0
    """Mean share of the honest miners that contribute in a round; a void round counts as 0."""
    withholders_pay: float = 0.0
    """Mean share that withholding miners have of the weights that honest validators set .."""
    withholders_work: float = 0.0
    """.. and their share of all rounds that miners trained in."""
    loss_fall: float = 0.0
    """Fall of the held-out loss since theta_0: the model's progress, for comparison with a run of the same seed without
    faults."""
    history: str = ""
    """sha256 of all events: the same for the same seed and code."""
    explained: dict[str, int] = field(default_factory=dict)
    """Reasons of void rounds, and their counts."""
    broken: list[str] = field(default_factory=list)
    """Every broken invariant, in words, in order of time."""
