"""Who is in a network, by name."""

from pathlib import Path

from localnet.kinds import FAULTS
from localnet.plan import NEWCOMER, Plan
from localnet.seaweed import _NAME


def test_every_member_has_a_name_of_its_own_that_tells_its_role(tmp_path: Path) -> None:
    plan = Plan(tmp_path, miners=3, validators=2, faults=(*FAULTS, "noise", "noise"), newcomers=2)
    names = plan.names()
    assert len(names) == 1 + 3 + 2 + len(FAULTS) + 2 + 2
    assert next(iter(names)) == "owner"
    assert [name for name, (role, _) in names.items() if role == "validator"] == ["validator-1", "validator-2"]
    assert [name for name, (_, fault) in names.items() if fault == "noise"] == ["noise-1", "noise-2", "noise-3"]
    newcomers = [name for name in names if name.startswith(NEWCOMER)]
    assert newcomers == ["newcomer-1", "newcomer-2"]
    assert all(names[name] == ("miner", None) for name in newcomers)
    assert all(_NAME.fullmatch(name) for name in names)  # every one is a bucket's name too
