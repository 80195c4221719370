"""The whole method in one process, without network, chain or clock: three honest miners, one that sends garbage, and
one validator with all the stake play two rounds over the pure functions that nodes run. docs/tour.md explains them."""

from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from gauntlet.agreement import Log, Post, abstention, agreed, vote_for
from gauntlet.book import RoundOutcome, ScoreBook, fold
from gauntlet.checks import CheckFunctions, Expected, Gathered, fast_checks
from gauntlet.loss import bounded, evaluate
from gauntlet.sampling import Seed, pick, references, samples
from gauntlet.selection import standing
from gauntlet.weights import weights
from murmur.data.build import build
from murmur.data.shards import Shards
from murmur.lab.simulation.signer import HashSigner, hash_verify
from murmur.plan import presets
from murmur.protocol.assignment import assigned
from murmur.protocol.messages import Reveal, first_link, link_of
from murmur.protocol.run import Run
from murmur.protocol.types import Commitment, Digest, Peer, Slot, Uid
from murmur.training.evaluate import held_out_loss
from murmur.training.loader import sequences
from murmur.training.model import genesis_theta
from murmur.training.probe import Prober
from murmur.training.replica import Replica
from storage.seal import seal, unseal

folder = TemporaryDirectory()
index = build("botocore", Path(folder.name), limit_bytes=250_000)  # API documentation, which boto3 brings along
shards = Shards.open(Path(folder.name), index_digest=index)
spec = presets.read("tiny").first  # the demo's model, with fewer steps and samples
data = {"index": index.hex(), "num_tokens": shards.train.num_tokens, "page_sequences": 80, "held_out_sequences": 32}
less = {"data": data, "inner": {"steps": 10, "warmup_steps": 10}}
less["gauntlet"] = {"sample_sequences": 16, "trace_values": 0}  # no step is repeated here
spec = spec.model_copy(update={name: getattr(spec, name).model_copy(update=part) for name, part in less.items()})
run, clock, rules, theta_0 = Run(spec), spec.rounds_clock, spec.gauntlet, genesis_theta(spec.model, seed=0)
draws = {"num_pages": spec.num_pages, "page_tokens": spec.page_tokens, "count": spec.pages_per_round}
miners, judge = [HashSigner(name) for name in ("ann", "ben", "cem", "garbage")], HashSigner("validator")
replicas = {signer.peer: Replica(spec, theta_0) for signer in (*miners, judge)}  # what each node holds
mine, book, link, seat = replicas[judge.peer], ScoreBook(), first_link(run.id), Slot(1, statement=abstention(0))
losses = [held_out_loss(mine, shards, spec.data.held_out_sequences)]
for round in range(2):
    page_hash, commit_hash, sample_hash = (Digest(sha256(b"%d %d" % (round, i)).digest()) for i in range(3))  # blocks
    gathered = []
    for uid, miner in enumerate(miners):
        replica = replicas[miner.peer]
        pages = assigned(run.id, page_hash, miner.peer, **draws)  # 1. assignment: which text it trains on
        replica.inner_round(sequences(shards.train, pages, spec.model.context))  # 2. inner round: theta -> theta_r
        records = replica.compress().records  # 3. compress: error feedback, Top-k, 2 bits
        plaintext = replica.digest() + (records if miner is not miners[3] else bytes(len(records)))
        sealed = seal(plaintext, run=run.id, round=round, signer=miner)  # 4. seal: encrypt, sign
        slot = Slot(clock.commit_deadline(round), statement=Commitment(round, sealed.digest))  # 5. commit
        reveal = Reveal(run.id, round, miner.peer, sealed.key, replica.sync_proof(commit_hash, miner.peer))
        signed = reveal.signed_part + miner.sign(reveal.signed_part)
        gathered.append(Gathered(Peer(miner.peer, Uid(uid), 0, False, slot=slot), sealed.object, reveal=signed))
    synced = spec, run.id, round, mine.digest(), clock, partial(mine.sync_proof, commit_hash), mine.outer, commit_hash
    checked = fast_checks(Expected(*synced), gathered, CheckFunctions(hash_verify, unseal))  # 6. check
    ranking = standing(book, checked.passed, rules, round, commit_hash, checked.twins)  # 7. order: by earlier ratings
    peers = [*(item.peer for item in gathered), Peer(judge.peer, Uid(4), 1, True, slot=seat)]
    uids = {peer.id: peer.uid for peer in peers}
    vote = vote_for(round, [uids[peer] for peer in ranking.order], (mine.digest(), link))  # 8. vote
    post = Post(clock.commit_deadline(round) + 1, judge.peer, vote)
    selection = agreed(run, round, Log(peers, commit_hash, (post,)), *[clock.vote_deadline(round)] * 2).selection
    link, seat, chosen = link_of(selection), Slot(post.block, statement=vote), {p for p, _ in selection.contributing}
    seed = Seed(run.id, sample_hash, round, judge.peer)
    picked = pick(book, checked.passed, chosen, rules, seed, checked.twins)
    drawn, rivals = samples(spec, page_hash, picked, {*uids}, seed), references(picked, {*picked}, chosen, rules, seed)
    with Prober(mine, shards.train, rules.probe_step) as prober:  # 9. score: whose update lowers which loss
        scores = evaluate(prober.losses, checked.passed, bounded(checked.passed, mine.outer), drawn, rivals)
    book = fold(book, RoundOutcome(round, checked, scores, frozenset(chosen)), rules)
    for replica in replicas.values():  # 10. outer step, on every node
        replica.outer_step([checked.passed[peer].update for peer in sorted(chosen)], **spec.outer.model_dump())
    losses.append(held_out_loss(mine, shards, spec.data.held_out_sequences))
    thetas = {replica.digest() for replica in replicas.values()}
    print(f"round {round}: {len(chosen)} selected, {len(checked.rejected)} rejected; {len(thetas)} theta on all nodes")
    print(f"  loss {losses[-2]:.3f} -> {losses[-1]:.3f}, pay {weights(book, ranking, uids, judge.peer, rules)}")
