"""Thousands of pairs from a handful of seeds: anneal until two attempts agree, refine, and confirm each pair by maps without it.

1. Attempts (annealing.py), each from other coordinates, seeds' weights and breadth, until two of them find the same pairs:
   wrong answers are many and differ, the right one is one. `agreed` ends it, or the number of attempts.
2. Refinement (refining.py) from what both found: graded maps of the pools' leading directions, mutual best by CSLS, until the
   pairs stay the same.
3. Confirmation (honesty.py): maps of random halves judge the pairs of the other half. Most of them must confirm a pair.
Nothing is said to be right here; `honesty.estimate` says how much probably is. Explained and ablated in docs/bootstrap.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from app.maths.bootstrap import annealing, honesty, refining, unsupervised
from app.maths.bootstrap.annealing import Plan, Schedule
from app.maths.bootstrap.common import Grown, OnStep, Pools, State, Step, check_pairs, ignore

#: how attempts differ, in turn; later ones take twice the rounds and weigh the seeds at random
VARIANTS: tuple[Mapping[str, float | int], ...] = (
    {},
    {"power": 0.4, "flattening": 0.75, "breadth": 0.3},
    {"dimensions": 64, "seed_weight": 1.0},
    {"power": 0.6, "flattening": 0.4, "dimensions": 256},
)
#: items for which Schedule.seed_weight is meant: in larger pools a seed weighs more, for more items are beside it
USUAL_POOL = 2_500
#: items of a pool without which there is nothing to learn from
FEWEST = 20
#: rows that are named to be labelled next
ASKED = 10
#: more likely right than wrong
LIKELY = 0.5
#: what is no map at all before it is annealed
UNKNOWN_BREADTH = 0.05


@dataclass(frozen=True)
class Settings:
    """attempts  at most; the first two always, unless `attempts` is 1
    agreed    share of equal partners at which two attempts are believed, in [0, 1]
    refinements  rounds at most, and `stable`: share of equal partners at which they end
    confirmations  halvings of the pairs, for the confidence; a pair needs more than half of them
    size      most pairs wanted, the most confident; None for all
    seed      draws the weights, halves and centroids
    rows      of the source pool that take part at most, seeds among them: what makes 200,000 items bearable
    """

    attempts: int = 6
    rounds: int = 40
    agreed: float = 0.8
    refinements: int = 4
    stable: float = 0.99
    confirmations: int = honesty.REPEATS
    size: int | None = None
    seed: int = 0
    rows: int = 20_000
    schedule: Schedule = field(default_factory=Schedule)
    centroids: unsupervised.Centroids = field(default_factory=unsupervised.Centroids)


@dataclass(frozen=True, eq=False)
class Learnt:
    """pairs        (p, 2) accepted rows (i of x, j of y), seeds that are believed first, then the most confident; no row twice
    confidence   (p,) probability that each is right
    estimate     of the share that is right
    wrong_seeds  rows of the seeds that the others contradict
    ask          (a,) rows of x whose partner would help most
    attempts     that were made
    votes        of all mutual pairs, accepted or not
    """

    pairs: Int64[Tensor, "p 2"]
    confidence: Float32[Tensor, " p"]
    estimate: honesty.Estimate
    wrong_seeds: list[int]
    ask: Int64[Tensor, " a"]
    attempts: int
    votes: honesty.Votes

    def grown(self) -> Grown:
        """What every method gives."""
        told = self.estimate
        facts = {"right": told.right, "agreement": told.agreement, "confirmed": told.confirmed, "attempts": float(self.attempts)}
        return Grown(self.pairs, self.confidence, facts)


def grow(
    pools: Pools, seeds: list[tuple[int, int]], settings: Settings, *, state: State | None = None, on_step: OnStep = ignore
) -> Grown:
    """As `learn`, in the form that all methods share."""
    return learn(pools, seeds, settings, state=state, on_step=on_step).grown()


@torch.no_grad()
def learn(
    pools: Pools,
    seeds: list[tuple[int, int]],
    settings: Settings,
    *,
    state: State | None = None,
    on_step: OnStep = ignore,
) -> Learnt:
    """All pairs that the seeds lead to; without seeds, from an unsupervised start.

    state  as an earlier `on_step` was given it, for equal arguments: the answer is that of an undisturbed run
    Deterministic for equal inputs, settings, device and number of threads. Raises InvalidSeeds.
    """
    check_pairs(seeds, source=len(pools.x), target=len(pools.y))
    run = _Run(pools, seeds, settings, on_step)
    run.restore(state)
    while run.wants_attempt():
        run.attempt()
    while run.wants_refinement():
        run.refine()
    while run.confirmed < settings.confirmations:
        run.confirm()
    return run.learnt()


@dataclass(eq=False)
class _Run:
    """Where self-learning stands; every public step but `attempt` is one step of progress, and of that every round is."""

    pools: Pools
    pairs: list[tuple[int, int]]
    settings: Settings
    on_step: OnStep
    plan: Plan | None = None
    partners: list[Int64[Tensor, " n"]] = field(default_factory=list)
    refined: int = 0
    stability: float = 0.0
    current: Int64[Tensor, " n"] | None = None
    confirmed: int = 0
    chosen: list[Bool[Tensor, " p"]] = field(default_factory=list)
    ranks: list[Float32[Tensor, " s"]] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device = self.pools.device
        given = torch.tensor(self.pairs, dtype=torch.int64).reshape(-1, 2)
        self.rows = _some(len(self.pools.x), self.settings.rows, given[:, 0], self._seed(0))
        self.seeds = torch.stack([torch.searchsorted(self.rows, given[:, 0].contiguous()), given[:, 1]], dim=1).to(device)
        self.x = annealing.directions(self.pools.x, self.rows.to(device))
        self.y = annealing.directions(self.pools.y)

    # progress

    def beat(self) -> None:
        self.on_step(Step(self._done(), self._total(), dict(self.facts)))

    def step(self) -> None:
        self.on_step(Step(self._done(), self._total(), dict(self.facts), self.snapshot()))

    def _done(self) -> int:
        done = sum(self._rounds(k) for k in range(len(self.partners))) + (self.plan.done if self.plan else 0)
        return (done if self.current is None else self._annealing()) + self.refined + self.confirmed

    def _total(self) -> int:
        return self._annealing() + self.settings.refinements + self.settings.confirmations

    def _annealing(self) -> int:
        return sum(self._rounds(k) for k in range(self.settings.attempts))

    def _rounds(self, attempt: int) -> int:
        return self.settings.rounds * (1 if attempt < len(VARIANTS) else 2)

    # checkpoints

    def snapshot(self) -> State:
        held: dict[str, Tensor] = {
            "refined": torch.tensor(self.refined),
            "stability": torch.tensor(self.stability, dtype=torch.float64),
        }
        if self.plan is not None:
            held |= {"overlap": self.plan.overlap, "potential": self.plan.potential, "known": self.known}
            held |= {"done": torch.tensor(self.plan.done), "fit": torch.tensor(self.plan.fit, dtype=torch.float64)}
        if self.partners:
            held["partners"] = torch.stack(self.partners)
        if self.current is not None:
            held["current"] = self.current
        if self.chosen:
            held |= {"chosen": torch.stack(self.chosen), "ranks": torch.stack(self.ranks)}
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in held.items()}

    def restore(self, state: State | None) -> None:
        if state is None:
            return
        held = {name: tensor.to(self.pools.device) for name, tensor in state.items()}
        self.refined, self.stability = int(held["refined"]), float(held["stability"])
        if "partners" in held:
            self.partners = list(held["partners"].unbind())
        if "overlap" in held:
            self.plan = Plan(held["overlap"], held["potential"], float(held["fit"]), int(held["done"]))
            self.known = held["known"]
        self.current = held.get("current")
        if "chosen" in held:
            self.chosen, self.ranks = list(held["chosen"].unbind()), list(held["ranks"].unbind())
            self.confirmed = len(self.chosen)

    # attempts

    def wants_attempt(self) -> bool:
        if self.current is not None:
            return False
        if self.plan is not None or not self.partners:
            return True
        agreed, _ = self._consensus()
        if len(self.partners) < self.settings.attempts and agreed < self.settings.agreed:
            return True
        self._agree()
        return False

    def attempt(self) -> None:
        """One annealing, from wherever the last checkpoint left it."""
        number = len(self.partners)
        schedule = self._schedule(number)
        x, y = (side.coordinates(power=schedule.power, dimensions=schedule.dimensions) for side in (self.x, self.y))
        if self.plan is None:
            self.known = self._known(x, y, schedule, number)
            overlap = self.known
            if not self.pairs:
                overlap = unsupervised.overlap(x, y, self.settings.centroids, seed=self._seed(number), beat=self.beat)
            self.plan = annealing.start(overlap, target=len(y))
        while self.plan.done < schedule.rounds:
            self.plan = annealing.advance(x, y, self.known, self.plan, schedule, memory=self.pools.memory, beat=self.beat)
            self.facts |= {"attempt": float(number + 1), "fit": self.plan.fit}
            self.step()
        q = annealing.mapped(x, self.plan.overlap, schedule.flattening)
        found = refining.match(q, y, memory=self.pools.memory, beat=self.beat)
        self.partners.append(found.partner)
        self.plan = None
        agreed, _ = self._consensus()
        self.facts |= {"pairs": float((found.partner >= 0).sum()), "agreement": agreed}
        self.step()

    def _schedule(self, number: int) -> Schedule:
        schedule = replace(self.settings.schedule, rounds=self._rounds(number))
        schedule = replace(schedule, **VARIANTS[number % len(VARIANTS)])  # type: ignore[arg-type]
        if not self.pairs:
            schedule = replace(schedule, breadth=UNKNOWN_BREADTH)
        return schedule

    def _known(self, x: Tensor, y: Tensor, schedule: Schedule, number: int) -> Float32[Tensor, "rx ry"]:
        """The seeds' part of the overlap: alike at first, weighed at random later (Bayesian bootstrap)."""
        weights = torch.ones(len(self.seeds), dtype=torch.float64)
        if number >= len(VARIANTS):
            generator = torch.Generator().manual_seed(self._seed(number))
            weights = torch.empty_like(weights).exponential_(generator=generator)
        weights *= schedule.seed_weight * max(1.0, len(x) / USUAL_POOL)
        return (x[self.seeds[:, 0]] * weights[:, None].to(x)).T @ y[self.seeds[:, 1]]

    def _seed(self, number: int) -> int:
        return (self.settings.seed * 1_000_003 + number) % 2**31

    def _consensus(self) -> tuple[float, tuple[int, int]]:
        """The largest agreement of two attempts, and which."""
        every = [(honesty.agreement(a, self.partners[j]), (j, i)) for i, a in enumerate(self.partners) for j in range(i)]
        return max(every, default=(0.0, (0, 0)), key=lambda found: found[0])

    def _agree(self) -> None:
        """Begin refinement with what the two that agree most have in common, and the seeds."""
        _, (one, other) = self._consensus()
        first, second = self.partners[one], self.partners[other]
        self.current = torch.where(first == second, first, torch.full_like(first, -1))

    # refinement and confirmation

    def wants_refinement(self) -> bool:
        return self.confirmed == 0 and self.refined < self.settings.refinements and self.stability < self.settings.stable

    def refine(self) -> None:
        assert self.current is not None
        found = refining.rematch(
            self.x.along, self.y.along, self._with_seeds(self.current), memory=self.pools.memory, beat=self.beat
        )
        self.stability = honesty.agreement(self.current, found.partner)
        self.current, self.refined = found.partner, self.refined + 1
        self.facts |= {"pairs": float((found.partner >= 0).sum()), "stability": self.stability}
        self.step()

    def confirm(self) -> None:
        pairs = self._found()
        half = honesty.halves(len(pairs), self.confirmed, self.settings.seed).to(pairs.device)
        chosen, ranks = honesty.confirm(
            self.x.along, self.y.along, pairs, self.seeds, half, memory=self.pools.memory, beat=self.beat
        )
        self.chosen.append(chosen)
        self.ranks.append(ranks)
        self.confirmed += 1
        self.facts["confirmed"] = float(torch.stack(self.chosen).double().mean().nan_to_num())
        self.step()

    def learnt(self) -> Learnt:
        pairs = self._found()
        # Without a single confirmation no pair is confirmed, and nothing is known of a seed.
        chosen = self.chosen or [torch.zeros(len(pairs), dtype=torch.bool)]
        ranks = self.ranks or [torch.full((len(self.seeds),), torch.nan)]
        votes = honesty.Votes(
            self._rows_of(pairs.cpu()),
            torch.stack(chosen).float().mean(dim=0).cpu(),
            honesty.medians(torch.stack(ranks)).cpu(),
        )
        agreed, _ = self._consensus()
        accepted = votes.confirmed > LIKELY
        sure = honesty.confidence(votes, agreed)
        told = honesty.estimate(votes, accepted, agreed=agreed)
        wrong = honesty.wrong_seeds(votes, torch.tensor(self.pairs, dtype=torch.int64).reshape(-1, 2))
        believed = [pair for row, pair in enumerate(self.pairs) if row not in set(wrong)]
        kept, certainty = _with_believed(votes.pairs[accepted], sure[accepted], believed, told.right, self.settings.size)
        return Learnt(kept, certainty, told, wrong, self._ask(kept, certainty), len(self.partners), votes)

    def _rows_of(self, pairs: Int64[Tensor, "p 2"]) -> Int64[Tensor, "p 2"]:
        """Pairs of the rows that take part, as rows of the pools."""
        return torch.stack([self.rows[pairs[:, 0]], pairs[:, 1]], dim=1)

    def _found(self) -> Int64[Tensor, "p 2"]:
        assert self.current is not None
        return refining.Matched(self.current, self.current.float()).pairs

    def _with_seeds(self, partner: Int64[Tensor, " n"]) -> Int64[Tensor, "p 2"]:
        """The pairs of a first matching, and the seeds in place of what contradicts them."""
        if self.refined or not len(self.seeds):
            return refining.Matched(partner, partner.float()).pairs
        joined = partner.clone()
        joined[torch.isin(joined, self.seeds[:, 1])] = -1
        joined[self.seeds[:, 0]] = self.seeds[:, 1]
        return refining.Matched(joined, joined.float()).pairs

    def _ask(self, pairs: Int64[Tensor, "p 2"], sure: Float32[Tensor, " p"], count: int = ASKED) -> Int64[Tensor, " a"]:
        along = self.x.coordinates(power=self.settings.schedule.power, dimensions=self.settings.schedule.dimensions)
        settled = torch.zeros(len(along), dtype=torch.bool, device=along.device)
        certain = torch.searchsorted(self.rows, pairs[sure > LIKELY, 0]).to(along.device)
        settled[certain] = True
        known = torch.unique(torch.cat([self.seeds[:, 0], certain]))
        return self.rows[honesty.ask_next(along, known, settled, count).cpu()]


def _with_believed(
    pairs: Int64[Tensor, "p 2"],
    sure: Float32[Tensor, " p"],
    seeds: list[tuple[int, int]],
    right: float,
    size: int | None,
) -> tuple[Int64[Tensor, "q 2"], Float32[Tensor, " q"]]:
    """Seeds first, then what does not contradict them, the most confident first, at most `size`."""
    known = torch.tensor(seeds, dtype=torch.int64).reshape(-1, 2)
    others = ~(torch.isin(pairs[:, 0], known[:, 0]) | torch.isin(pairs[:, 1], known[:, 1]))
    order = sure[others].argsort(descending=True, stable=True)
    kept = torch.cat([known, pairs[others][order]])[:size]
    return kept, torch.cat([torch.full((len(known),), max(right, 0.0)), sure[others][order]])[:size].float()


def _some(rows: int, most: int, always: Int64[Tensor, " s"], seed: int) -> Int64[Tensor, " r"]:
    """At most so many rows (the given ones anyway), drawn uniformly, in order."""
    if rows <= most:
        return torch.arange(rows)
    drawn = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    others = drawn[~torch.isin(drawn, always)]
    return torch.cat([always, others[: max(0, most - len(always))]]).sort().values
