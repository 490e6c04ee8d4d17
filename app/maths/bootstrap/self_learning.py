"""Thousands of pairs from a handful of seeds: anneal until two attempts agree, refine, and confirm
each pair by maps without it.

1. Attempts (annealing.py), each with other coordinates, seed weights and breadth, until two of them
   find the same pairs: there are many wrong results and they differ, but only one right one. They
   end with the agreement `agreed`, or with the number of attempts.
2. Refinement (neighbours.py) from the pairs that both found: graded maps of the pools' leading
   directions, and mutual best matches by CSLS, until the pairs stay the same.
3. Confirmation (estimate.py): maps of random halves judge the pairs of the other half. Most of them
   must confirm a pair.
4. Chance: one short attempt from random seeds against a scrambled target pool shows the share that
   any result would confirm. Orphans (estimate.py): items whose partner is removed show how readily
   items without a partner are paired.
This module claims no pair to be right; `estimate_right` estimates the share.
docs/explanation/anchors.md explains the steps and their ablation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from app.maths.bootstrap import annealing, estimate, neighbours
from app.maths.bootstrap.annealing import (
    AnnealingState,
    Directions,
    Schedule,
    principal_directions,
)
from app.maths.bootstrap.estimate import (
    Outcome,
    answer_credibility,
    estimate_right,
    pair_confidence,
    wrong_seeds,
)
from app.maths.bootstrap.pools import (
    OnStep,
    Pools,
    State,
    Step,
    check_pairs,
    draw_rows,
    ignore_step,
    seed_tensor,
)

#: In smaller pools, right and wrong cannot be distinguished.
FEWEST_POOL_ITEMS = 100
#: More likely right than wrong.
LIKELY_RIGHT = 0.5
#: Rounds, seeds and refinements of the run that measures chance.
CHANCE_ROUNDS, CHANCE_SEEDS, CHANCE_REFINEMENTS = 10, 10, 4
#: Orphans lower an estimate to this at least: where items have near twins, an orphan finds its
#: twin's partner.
LEAST_ORPHAN_FACTOR = 0.25
#: The prefix of the chance run's tensors in a checkpoint, and the name of the orphans' counts.
CHANCE_PREFIX, ORPHAN_COUNTS = "chance.", "orphans"
#: The settings that distinguish attempts, in turn; later attempts take twice the rounds and weight
#: the seeds at random.
VARIANTS: tuple[Mapping[str, float | int], ...] = (
    {},
    {"power": 0.4, "flattening": 0.75, "breadth": 0.3},
    {"dimensions": 64, "seed_weight": 1.0},
    {"power": 0.6, "flattening": 0.4, "dimensions": 256},
)
#: Schedule.seed_weight is meant for this many items; a seed weighs more in larger pools, because it
#: competes with more items.
REFERENCE_POOL_ITEMS = 2_500
#: The breadth for a start without seeds, which is no map at all before it is annealed.
UNSEEDED_BREADTH = 0.05


@dataclass(frozen=True)
class SelfLearningSettings:
    """The settings of self-learning.

    attempts       at most; the first two always, unless `attempts` is 1
    agreed         share of equal partners at which two attempts are believed, in [0, 1]
    refinements    rounds at most, and `stable`: share of equal partners at which they end
    confirmations  halvings of the pairs, for the confidence; a pair needs more than half of them
    size           the largest number of pairs, the most confident; None for all
    seed           draws the weights, halves and centroids
    rows           of the source pool that take part at most, seeds among them; limits the cost for
                   large pools
    """

    attempts: int = 6
    rounds: int = 40
    agreed: float = 0.8
    refinements: int = 4
    stable: float = 0.99
    confirmations: int = estimate.CONFIRMATIONS
    size: int | None = None
    seed: int = 0
    rows: int = 20_000
    centroids: annealing.CentroidSettings = field(default_factory=annealing.CentroidSettings)


@dataclass(eq=False)
class SelfLearningRun:
    """The state of self-learning; every round, refinement and confirmation is a step of progress.

    x, y       the pools' directions
    seeds      (s, 2) rows of them
    annealing  the state of the current attempt, and `seed_overlap`, the seeds' part of its overlap
    partners   (n,) of each finished attempt: the mutual partner in y of row i of x, or -1
    current    (n,) the same since refinement began
    refinements  the number of refinements, and `stability`: share of equal partners of the last two
    halvings   the number of confirmations: whether each pair was `chosen` (p,), and the `ranks`
               (s,) of the seeds
    """

    x: Directions
    y: Directions
    seeds: Int64[Tensor, "s 2"]
    settings: SelfLearningSettings
    on_step: OnStep
    annealing: AnnealingState | None = None
    seed_overlap: Float32[Tensor, "rx ry"] | None = None
    partners: list[Int64[Tensor, " n"]] = field(default_factory=list)
    refinements: int = 0
    stability: float = 0.0
    current: Int64[Tensor, " n"] | None = None
    halvings: int = 0
    chosen: list[Bool[Tensor, " p"]] = field(default_factory=list)
    ranks: list[Float32[Tensor, " s"]] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Run from the current state to the end."""
        if self.current is None:
            while self._needs_attempt():
                self._run_attempt()
            # Refinement begins with the common pairs of the two attempts that agree most.
            first, second = (self.partners[number] for number in self._consensus()[1])
            self.current = torch.where(first == second, first, -1)
        while (
            self.halvings == 0
            and self.refinements < self.settings.refinements
            and self.stability < self.settings.stable
        ):
            self._refine()
        while self.halvings < self.settings.confirmations:
            self._confirm()

    # results

    @property
    def pairs(self) -> Int64[Tensor, "p 2"]:
        """The current mutual pairs."""
        assert self.current is not None
        return neighbours.partner_pairs(self.current)

    @property
    def votes(self) -> estimate.Votes:
        """The votes on these pairs, on the CPU."""
        pairs = self.pairs
        # Without a confirmation no pair is confirmed, and the ranks of seeds are unknown.
        chosen = self.chosen or [torch.zeros(len(pairs), dtype=torch.bool)]
        ranks = self.ranks or [torch.full((len(self.seeds),), torch.nan)]
        return estimate.Votes.counted(pairs, chosen, ranks)

    @property
    def confirmation(self) -> estimate.Confirmation:
        """The confirmed share."""
        confirmed = self.votes.confirmed
        share = float(confirmed.double().mean()) if len(confirmed) else 0.0
        return estimate.Confirmation(share, len(confirmed) / self.smaller)

    @property
    def smaller(self) -> int:
        """Items of the smaller pool that take part."""
        return min(len(self.x.along), len(self.y.along))

    @property
    def agreed(self) -> float:
        """The largest agreement of two attempts."""
        return self._consensus()[0]

    def _beat(self, state: State | None = None) -> None:
        self.on_step(Step(self._done(), max_steps(self.settings), dict(self.facts), state))

    def _done(self) -> int:
        attempts = len(self.partners) if self.current is None else self.settings.attempts
        rounds = _total_rounds(self.settings, attempts)
        rounds += self.annealing.done if self.annealing else 0
        return rounds + self.refinements + self.halvings

    def snapshot(self) -> State:
        """A checkpoint of the current state. No later step changes its tensors."""
        tensors: dict[str, Tensor] = {
            "refined": torch.tensor(self.refinements),
            "stability": torch.tensor(self.stability, dtype=torch.float64),
        }
        if self.annealing is not None:
            assert self.seed_overlap is not None
            tensors |= {
                "overlap": self.annealing.overlap,
                "potential": self.annealing.potential,
                "known": self.seed_overlap,
            }
            tensors |= {
                "done": torch.tensor(self.annealing.done),
                "fit": torch.tensor(self.annealing.fit, dtype=torch.float64),
            }
        if self.partners:
            tensors["partners"] = torch.stack(self.partners)
        if self.current is not None:
            tensors["current"] = self.current
        if self.chosen:
            tensors |= {"chosen": torch.stack(self.chosen), "ranks": torch.stack(self.ranks)}
        return tensors

    def restore(self, state: State) -> None:
        """Restore the state of a checkpoint."""
        tensors = {name: tensor.to(self.seeds.device) for name, tensor in state.items()}
        self.refinements, self.stability = int(tensors["refined"]), float(tensors["stability"])
        if "partners" in tensors:
            self.partners = list(tensors["partners"].unbind())
        if "overlap" in tensors:
            self.annealing = AnnealingState(
                state["overlap"].cpu(),
                tensors["potential"],
                float(tensors["fit"]),
                int(tensors["done"]),
            )
            self.seed_overlap = tensors["known"]
        self.current = tensors.get("current")
        if "chosen" in tensors:
            self.chosen, self.ranks = (
                list(tensors["chosen"].unbind()),
                list(tensors["ranks"].unbind()),
            )
            self.halvings = len(self.chosen)

    # attempts

    def _needs_attempt(self) -> bool:
        count, most = len(self.partners), self.settings.attempts
        if self.annealing is not None or count < max(1, min(2, most)):
            return True
        return count < most and self.agreed < self.settings.agreed

    def _run_attempt(self) -> None:
        """One annealing, continued from the last checkpoint."""
        number = len(self.partners)
        schedule = self._schedule(number)
        x, y = (
            side.coordinates(power=schedule.power, dimensions=schedule.dimensions)
            for side in (self.x, self.y)
        )
        if self.annealing is None:
            self.seed_overlap = overlap = self._weighted_seeds(x, y, schedule, number)
            if not len(self.seeds):
                overlap = annealing.centroid_overlap(
                    x, y, self.settings.centroids, seed=self._seed(number), beat=self._beat
                )
            self.annealing = annealing.start_annealing(overlap, target=len(y))
        assert self.seed_overlap is not None
        while self.annealing.done < schedule.rounds:
            self.annealing = annealing.anneal_round(
                x, y, self.seed_overlap, self.annealing, schedule, beat=self._beat
            )
            self.facts |= {"attempt": float(number + 1), "fit": self.annealing.fit}
            self._beat(self.snapshot())
        q = annealing.map_rows(x, self.annealing.overlap, schedule.flattening)
        partner = neighbours.mutual_partners(q, y, beat=self._beat)
        self.partners.append(partner)
        self.annealing = None
        agreed, _ = self._consensus()
        self.facts |= {"pairs": float((partner >= 0).sum()), "agreement": agreed}
        self._beat(self.snapshot())

    def _schedule(self, number: int) -> Schedule:
        variant = VARIANTS[number % len(VARIANTS)]
        schedule = Schedule(rounds=_attempt_rounds(self.settings, number), **variant)  # type: ignore[arg-type]
        if not len(self.seeds):
            schedule = replace(schedule, breadth=UNSEEDED_BREADTH)
        return schedule

    def _weighted_seeds(
        self, x: Tensor, y: Tensor, schedule: Schedule, number: int
    ) -> Float32[Tensor, "rx ry"]:
        """The seeds' part of the overlap: equal weights at first, random ones later (Bayesian
        bootstrap).
        """
        weights = torch.ones(len(self.seeds), dtype=torch.float64)
        if number >= len(VARIANTS):
            generator = torch.Generator().manual_seed(self._seed(number))
            weights = torch.empty_like(weights).exponential_(generator=generator)
        weights *= schedule.seed_weight * max(1.0, len(x) / REFERENCE_POOL_ITEMS)
        return (x[self.seeds[:, 0]] * weights[:, None].to(x)).T @ y[self.seeds[:, 1]]

    def _seed(self, number: int) -> int:
        return (self.settings.seed * 1_000_003 + number) % 2**31

    def _consensus(self) -> tuple[float, tuple[int, int]]:
        """The largest agreement of two attempts, and their numbers."""
        agreements = [
            (estimate.attempt_agreement(a, self.partners[j]), (j, i))
            for i, a in enumerate(self.partners)
            for j in range(i)
        ]
        return max(agreements, default=(0.0, (0, 0)), key=lambda found: found[0])

    # refinement and confirmation

    def _refine(self) -> None:
        assert self.current is not None
        partner = neighbours.learn_and_match(
            self.x.along, self.y.along, self._with_seeds(self.current), beat=self._beat
        )
        self.stability = estimate.attempt_agreement(self.current, partner)
        self.current, self.refinements = partner, self.refinements + 1
        self.facts |= {"pairs": float((partner >= 0).sum()), "stability": self.stability}
        self._beat(self.snapshot())

    def _confirm(self) -> None:
        pairs = self.pairs
        half = estimate.draw_half(len(pairs), self.halvings, self.settings.seed).to(pairs.device)
        chosen, ranks = estimate.confirm_pairs(
            self.x.along, self.y.along, pairs, self.seeds, half, beat=self._beat
        )
        self.chosen.append(chosen)
        self.ranks.append(ranks)
        self.halvings += 1
        self.facts["confirmed"] = float(torch.stack(self.chosen).double().mean().nan_to_num())
        self._beat(self.snapshot())

    def _with_seeds(self, partner: Int64[Tensor, " n"]) -> Int64[Tensor, "p 2"]:
        """The pairs of a first matching, with the seeds in place of pairs that contradict them."""
        if self.refinements or not len(self.seeds):
            return neighbours.partner_pairs(partner)
        partners = partner.clone()
        partners[torch.isin(partners, self.seeds[:, 1])] = -1
        partners[self.seeds[:, 0]] = self.seeds[:, 1]
        return neighbours.partner_pairs(partners)


def max_steps(settings: SelfLearningSettings) -> int:
    """The largest number of steps of a run."""
    return (
        _total_rounds(settings, settings.attempts) + settings.refinements + settings.confirmations
    )


def _total_rounds(settings: SelfLearningSettings, attempts: int) -> int:
    """The rounds of the first `attempts` attempts together."""
    return sum(_attempt_rounds(settings, number) for number in range(attempts))


def _attempt_rounds(settings: SelfLearningSettings, attempt: int) -> int:
    return settings.rounds * (1 if attempt < len(VARIANTS) else 2)


@torch.no_grad()
def learn(
    pools: Pools,
    seeds: list[tuple[int, int]],
    settings: SelfLearningSettings,
    *,
    state: State | None = None,
    on_step: OnStep = ignore_step,
) -> Outcome:
    """All pairs that follow from the seeds; without seeds, from an unseeded start. The smaller pool
    is the target, whichever side it is.

    Annealing gives every item of the target its share of the plan. Where the source is the smaller
    pool, most of the target has no partner, and these shares pull the map away from the right one:
    of 500 items whose partners are among 3,000, no attempt agrees with another. Exchanged, they do
    (benchmarks/bootstrap/contained.py). `settings.rows` limits the source as given.

    state  a checkpoint of an earlier run with equal arguments; the result is that of an
           uninterrupted run
    Deterministic for equal inputs, settings, device and number of threads. Raises InvalidSeeds.
    """
    check_pairs(seeds, source=len(pools.x), target=len(pools.y))
    if len(pools.x) >= len(pools.y):
        return learn_as_given(pools, seeds, settings, state=state, on_step=on_step)
    known = seed_tensor(seeds)
    rows = draw_rows(len(pools.x), settings.rows, known[:, 0], settings.seed)
    smaller = pools.x if len(rows) == len(pools.x) else pools.x[rows.to(pools.device)]
    places = torch.searchsorted(rows, known[:, 0].contiguous()).tolist()
    found = learn_as_given(
        Pools(pools.y, smaller),
        [(j, place) for (_, j), place in zip(seeds, places, strict=True)],
        replace(settings, rows=len(pools.y)),
        state=state,
        on_step=on_step,
    )
    pairs = torch.stack([rows[found.pairs[:, 1]], found.pairs[:, 0]], dim=1)
    return replace(found, pairs=pairs)


@torch.no_grad()
def learn_as_given(
    pools: Pools,
    seeds: list[tuple[int, int]],
    settings: SelfLearningSettings,
    *,
    state: State | None = None,
    on_step: OnStep = ignore_step,
) -> Outcome:
    """`learn` with y as the target, whichever pool is smaller."""
    check_pairs(seeds, source=len(pools.x), target=len(pools.y))
    total = _total_steps(settings) + estimate.MAX_TRIALS

    def report(step: Step) -> None:
        on_step(replace(step, total=total))

    def beat() -> None:
        report(Step(0, total))

    known = seed_tensor(seeds)
    rows = draw_rows(len(pools.x), settings.rows, known[:, 0], settings.seed)
    taking_part = torch.stack(
        [torch.searchsorted(rows, known[:, 0].contiguous()), known[:, 1]], dim=1
    )
    some = None if len(rows) == len(pools.x) else rows.to(pools.device)
    x, y = principal_directions(pools.x, some, beat=beat), principal_directions(pools.y, beat=beat)
    main = SelfLearningRun(x, y, taking_part.to(pools.device), settings, report)
    if state:
        main.restore(state)
    main.run()
    outcome = _outcome(main, rows, seeds, state or {}, report)
    report(Step(total, total, main.facts))
    return outcome


def _chance_run(main: SelfLearningRun, state: State, report: OnStep) -> SelfLearningRun:
    """The run that measures chance, when it has ended: the target's directions scrambled, seeds
    drawn at random; continued from a checkpoint.
    """
    settings, done = _chance_settings(main.settings), max_steps(main.settings)
    before = main.snapshot()

    def on_step(step: Step) -> None:
        stored = step.state and {**before, **_with_prefix(step.state)}
        report(Step(done + step.done, step.total, main.facts, stored))

    def beat() -> None:
        report(Step(done, done, main.facts))

    generator = torch.Generator().manual_seed(settings.seed)
    count = min(CHANCE_SEEDS, main.smaller)
    random_seeds = [
        torch.randperm(len(side.along), generator=generator)[:count] for side in (main.x, main.y)
    ]
    chance = SelfLearningRun(
        main.x,
        main.y.scrambled(settings.seed, beat=beat),
        torch.stack(random_seeds, dim=1).to(main.seeds),
        settings,
        on_step,
    )
    if stored := {
        name.removeprefix(CHANCE_PREFIX): tensor
        for name, tensor in state.items()
        if name.startswith(CHANCE_PREFIX)
    }:
        chance.restore(stored)
    chance.run()
    return chance


def _with_prefix(state: State) -> State:
    return {CHANCE_PREFIX + name: tensor for name, tensor in state.items()}


def _run_orphan_trials(
    main: SelfLearningRun,
    chance: SelfLearningRun,
    pairs: Int64[Tensor, "p 2"],
    pair_share: float,
    state: State,
    report: OnStep,
) -> estimate.OrphanTrials:
    """Trials on pairs (p, 2) of the run's rows, `pair_share` of the smaller pool; continued from a
    checkpoint.
    """
    done = _total_steps(main.settings)
    before = {**main.snapshot(), **_with_prefix(chance.snapshot())}
    trials = estimate.OrphanTrials(*state.get(ORPHAN_COUNTS, torch.zeros(3).long()).tolist())
    while trials.needs_another(len(pairs), pair_share):

        def beat(number: int = trials.trials) -> None:
            report(Step(done + number, done, main.facts))

        trials = estimate.run_trial(
            main.x.along,
            main.y.along,
            pairs.to(main.seeds.device),
            trials,
            seed=main.settings.seed,
            beat=beat,
        )
        counts = torch.tensor([trials.trials, trials.orphans, trials.paired])
        stored = {**before, ORPHAN_COUNTS: counts}
        report(Step(done + trials.trials, done, main.facts, stored))
    return trials


def _total_steps(settings: SelfLearningSettings) -> int:
    """The largest number of steps of both runs."""
    return max_steps(settings) + max_steps(_chance_settings(settings))


def _chance_settings(settings: SelfLearningSettings) -> SelfLearningSettings:
    fewer = min(CHANCE_REFINEMENTS, settings.refinements)
    return replace(
        settings, attempts=1, rounds=min(CHANCE_ROUNDS, settings.rounds), refinements=fewer
    )


def _outcome(
    main: SelfLearningRun,
    rows: Int64[Tensor, " r"],
    seeds: list[tuple[int, int]],
    state: State,
    report: OnStep,
) -> Outcome:
    """The outcome of a run on these rows of the source pool."""
    agreed, confirmation = main.agreed, main.confirmation
    credibility, chance_run, chance = answer_credibility(agreed, confirmation), None, None
    if credibility:
        chance_run = _chance_run(main, state, report)
        chance = chance_run.confirmation
        credibility = answer_credibility(agreed, confirmation, chance)
    votes = main.votes
    accepted = votes.confirmed > LIKELY_RIGHT
    confidences, size = pair_confidence(votes, credibility), main.settings.size
    # The most confident of the returned pairs.
    most_confident = confidences[accepted].sort(descending=True).values[:size]
    estimated = estimate_right(votes, most_confident, agreed=agreed, chance=chance)
    # A result that is mostly wrong cannot identify wrong seeds.
    wrong_rows = (
        wrong_seeds(votes, main.seeds.cpu(), main.x.along, main.y.along)
        if len(most_confident) and float(most_confident.mean()) > LIKELY_RIGHT
        else []
    )
    if not wrong_rows and not credibility:
        estimated = replace(estimated, seeds_confirmed=math.nan)
    believed = [row for row in range(len(seeds)) if row not in set(wrong_rows)]
    pairs, certainty = _seeds_first(
        votes.pairs[accepted], confidences[accepted], main.seeds[believed].cpu(), estimated.right
    )
    share = 1.0
    if chance_run and estimated.right:
        # A discount for pairs whose items probably have no partner.
        pair_share = len(pairs) / main.smaller
        trials = _run_orphan_trials(main, chance_run, pairs, pair_share, state, report)
        with_partner = max(LEAST_ORPHAN_FACTOR, trials.right_share(len(pairs), pair_share))
        right = min(estimated.right, with_partner)
        share = right / estimated.right
        estimated = replace(estimated, right=right, orphans_paired=trials.share)
    facts = {
        "right": estimated.right,
        "agreement": estimated.agreement,
        "confirmed": estimated.confirmed,
        "attempts": float(len(main.partners)),
    }
    found = torch.stack([rows[pairs[:, 0]], pairs[:, 1]], dim=1)[:size]
    return Outcome(found, (certainty * share)[:size], estimated, wrong_rows, facts)


def _seeds_first(
    pairs: Int64[Tensor, "p 2"],
    confidences: Float32[Tensor, " p"],
    seeds: Int64[Tensor, "s 2"],
    right: float,
) -> tuple[Int64[Tensor, "q 2"], Float32[Tensor, " q"]]:
    """Seeds first, then the pairs that do not contradict them, the most confident first."""
    others = ~(torch.isin(pairs[:, 0], seeds[:, 0]) | torch.isin(pairs[:, 1], seeds[:, 1]))
    order = confidences[others].argsort(descending=True, stable=True)
    ordered = torch.cat([seeds, pairs[others][order]])
    return ordered, torch.cat(
        [torch.full((len(seeds),), max(right, 0.0)), confidences[others][order]]
    ).float()
