"""Thousands of pairs from a handful of seeds, or from none: anneal until two attempts agree,
refine, and confirm each pair by maps without it.

1. Attempts (annealing.py), each with other coordinates, seed weights and breadth, until two of them
   find the same pairs: there are many wrong results and they differ, but only one right one. They
   start from the seeds, or without seeds from matched components (components.py). They end with the
   agreement AGREED, or with the number of attempts.
2. Refinement (neighbours.py) from the pairs that both found: graded maps of the pools' leading
   directions, and mutual best matches by CSLS, until the pairs stay the same.
3. Confirmation (estimate.py): maps of random halves judge the pairs of the other half. Most of them
   must confirm a pair.
4. Chance: one short attempt from random seeds against a scrambled target pool shows the share that
   any result would confirm. Orphans (orphans.py): items whose partner is removed show how readily
   items without a partner are paired.
This module claims no pair to be right; it estimates the share.
docs/explanation/anchors.md explains the steps and their ablation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from app.maths.bootstrap import annealing, estimate, neighbours, orphans
from app.maths.bootstrap.annealing import Directions, Schedule, principal_directions
from app.maths.bootstrap.components import first_overlap
from app.maths.bootstrap.estimate import BootstrapEstimate, Confirmation, Outcome, Votes
from app.maths.bootstrap.neighbours import Beat
from app.maths.bootstrap.pools import (
    OnStep,
    Pools,
    Progress,
    Seeds,
    State,
    check_pairs,
    draw_rows,
    ignore_step,
    seed_tensor,
)

#: In smaller pools, right and wrong cannot be distinguished.
FEWEST_POOL_ITEMS = 100
#: More likely right than wrong.
LIKELY_RIGHT = 0.5
#: Rounds of an attempt; later ones, which weight the seeds at random, take twice as many.
ROUNDS = 40
#: Share of equal partners at which two attempts are believed.
AGREED = 0.8
#: Rounds of the refinement at most, and the share of equal partners at which it ends.
REFINEMENTS, STABLE = 4, 0.99
#: Rounds and seeds of the run that measures chance.
CHANCE_ROUNDS, CHANCE_SEEDS = 10, 10
#: Orphans lower an estimate to this at least: where items have near twins, an orphan finds its
#: twin's partner.
LEAST_ORPHAN_FACTOR = 0.25
#: The schedules of the attempts, in turn.
VARIANTS = (
    Schedule(),
    Schedule(power=0.4, flattening=0.75, breadth=0.3),
    Schedule(dimensions=64, seed_weight=1.0),
    Schedule(power=0.6, flattening=0.4, dimensions=256),
)
#: Schedule.seed_weight is meant for this many items; a seed weighs more in larger pools, because it
#: competes with more items.
REFERENCE_POOL_ITEMS = 2_500
#: The breadth for a start without seeds, which is no map at all before it is annealed.
UNSEEDED_BREADTH = 0.05


@dataclass(frozen=True)
class SelfLearningSettings:
    """The settings of self-learning.

    attempts  at most; the first two always, unless `attempts` is 1
    size      the largest number of pairs, the most confident; None for all
    seed      draws the weights, halves and components
    rows      of the source pool that take part at most, seeds among them; limits the cost for large
              pools
    """

    attempts: int = 6
    size: int | None = None
    seed: int = 0
    rows: int = 20_000


@dataclass(frozen=True, eq=False)
class _Sides:
    """What takes part: directions of the source and the target, and the seeds (s, 2), rows of
    them.
    """

    x: Directions
    y: Directions
    seeds: Int64[Tensor, "s 2"]

    @property
    def smaller(self) -> int:
        """Items of the smaller pool."""
        return min(len(self.x.along), len(self.y.along))


@torch.no_grad()
def learn(
    pools: Pools,
    seeds: Seeds,
    settings: SelfLearningSettings,
    *,
    state: State | None = None,
    on_step: OnStep = ignore_step,
) -> Outcome:
    """All pairs that follow from the seeds; without seeds, from an unseeded start. The smaller pool
    is annealed as the target, whichever side it is.

    Annealing gives every item of the target its share of the plan. Where the source is the smaller
    pool, most of the target has no partner, and these shares pull the map away from the right one:
    of 500 items whose partners are among 3,000, no attempt agrees with another. Exchanged, they do.

    state  a checkpoint of an earlier run with equal arguments, made after each attempt; the result
           is that of an uninterrupted run
    Deterministic for equal inputs, settings, device and number of threads. Raises InvalidSeeds.
    """
    check_pairs(seeds, source=len(pools.x), target=len(pools.y))
    progress = Progress(on_step, _total_steps(settings.attempts))
    known = seed_tensor(seeds)
    rows = draw_rows(len(pools.x), settings.rows, known[:, 0], settings.seed)
    known[:, 0] = torch.searchsorted(rows, known[:, 0].contiguous())
    some = None if len(rows) == len(pools.x) else rows.to(pools.x.device)
    beat = progress.beat
    x, y = principal_directions(pools.x, some, beat=beat), principal_directions(pools.y, beat=beat)
    known, is_smaller = known.to(pools.x.device), len(pools.x) < len(pools.y)
    sides = _Sides(y, x, known.flip(1)) if is_smaller else _Sides(x, y, known)
    outcome = _learn(sides, settings, state, progress)
    progress.end()
    places = outcome.pairs.flip(1) if is_smaller else outcome.pairs
    return replace(outcome, pairs=torch.stack([rows[places[:, 0]], places[:, 1]], dim=1))


def _learn(
    sides: _Sides, settings: SelfLearningSettings, state: State | None, progress: Progress
) -> Outcome:
    """The outcome, whose pairs are rows of the sides."""
    partners = _run_attempts(sides, settings, state, progress)
    # Refinement begins with the common pairs of the two attempts that agree most.
    agreed, (first, second) = _consensus(partners)
    votes = _refine_and_vote(sides, torch.where(first == second, first, -1), settings, progress)
    progress.facts |= {"pairs": float(len(votes.pairs)), "confirmed": votes.share}
    confirmed = _confirmation(sides, votes)
    credibility, by_chance = estimate.answer_credibility(agreed, confirmed), math.nan
    if credibility:
        chance = _measure_chance(sides, settings, progress)
        credibility = estimate.answer_credibility(agreed, confirmed, chance)
        by_chance = chance.share
    accepted = votes.confirmed > LIKELY_RIGHT
    confidences = estimate.pair_confidence(votes, credibility)[accepted]
    # The most confident of the returned pairs.
    most_confident = confidences.sort(descending=True).values[: settings.size]
    right = votes.right(most_confident)
    # A result that is mostly wrong cannot identify wrong seeds.
    wrong_rows = (
        estimate.wrong_seeds(votes, sides.seeds.cpu(), sides.x.along, sides.y.along)
        if len(most_confident) and float(most_confident.mean()) > LIKELY_RIGHT
        else []
    )
    believed = [row for row in range(len(sides.seeds)) if row not in set(wrong_rows)]
    pairs, certainty = _seeds_first(
        votes.pairs[accepted], confidences, sides.seeds[believed].cpu(), right
    )
    share, paired = 1.0, math.nan
    if right:
        # A discount for pairs whose items probably have no partner.
        with_partner, paired = orphans.judge_by_orphans(
            sides.x.along,
            sides.y.along,
            pairs.to(sides.seeds.device),
            seed=settings.seed,
            progress=progress,
        )
        before, right = right, min(right, max(LEAST_ORPHAN_FACTOR, with_partner))
        share = right / before
    estimated = BootstrapEstimate(
        right=right,
        agreement=agreed,
        confirmed=votes.share,
        by_chance=by_chance,
        seeds_confirmed=votes.seeds_confirmed if wrong_rows or credibility else math.nan,
        orphans_paired=paired,
    )
    facts = {
        "right": right,
        "agreement": agreed,
        "confirmed": votes.share,
        "attempts": float(len(partners)),
    }
    size = settings.size
    return Outcome(pairs[:size], (certainty * share)[:size], estimated, wrong_rows, facts)


def _run_attempts(
    sides: _Sides, settings: SelfLearningSettings, state: State | None, progress: Progress
) -> list[Int64[Tensor, " n"]]:
    """For each attempt, the mutual partner in y of each row of x (n,), or -1."""
    partners = list(state["partners"].to(sides.seeds.device).unbind()) if state else []
    while not partners or len(partners) < settings.attempts:
        number = len(partners)
        if number > 1 and _consensus(partners)[0] >= AGREED:
            break
        progress.done = _rounds_before(number)

        def on_round(fit: float, attempt: float = number + 1.0) -> None:
            progress.step(attempt=attempt, fit=fit)

        partners.append(
            _attempt(
                sides,
                number,
                _rounds(number),
                seed=settings.seed,
                beat=progress.beat,
                on_round=on_round,
            )
        )
        found = float((partners[-1] >= 0).sum())
        progress.facts |= {"pairs": found, "agreement": _consensus(partners)[0]}
        progress.report({"partners": torch.stack(partners)})
    progress.done = _rounds_before(settings.attempts)
    return partners


def _attempt(
    sides: _Sides,
    number: int,
    rounds: int,
    *,
    seed: int,
    beat: Beat,
    on_round: Callable[[float], None],
) -> Int64[Tensor, " n"]:
    """The partners that one annealing finds."""
    seed, schedule = (seed * 1_000_003 + number) % 2**31, VARIANTS[number % len(VARIANTS)]
    x, y = (
        side.coordinates(power=schedule.power, dimensions=schedule.dimensions)
        for side in (sides.x, sides.y)
    )
    weights = torch.ones(len(sides.seeds), dtype=torch.float64)
    if number >= len(VARIANTS):  # Bayesian bootstrap
        weights.exponential_(generator=torch.Generator().manual_seed(seed))
    weights *= schedule.seed_weight * max(1.0, len(x) / REFERENCE_POOL_ITEMS)
    known = overlap = (x[sides.seeds[:, 0]] * weights[:, None].to(x)).T @ y[sides.seeds[:, 1]]
    if not len(sides.seeds):
        schedule = replace(schedule, breadth=UNSEEDED_BREADTH)
        overlap = first_overlap(x, y, seed=seed, beat=beat)
    overlap = annealing.anneal(x, y, known, overlap, schedule, rounds, beat=beat, on_round=on_round)
    q = annealing.map_rows(x, overlap, schedule.flattening)
    return neighbours.mutual_partners(q, y, beat=beat)


def _consensus(
    partners: list[Int64[Tensor, " n"]],
) -> tuple[float, tuple[Int64[Tensor, " n"], Int64[Tensor, " n"]]]:
    """The largest agreement of two attempts, and these two; 0 and itself for a single one."""
    agreements = [
        (estimate.attempt_agreement(later, earlier), (earlier, later))
        for number, later in enumerate(partners)
        for earlier in partners[:number]
    ]
    return max(agreements, default=(0.0, (partners[0], partners[0])), key=lambda found: found[0])


def _refine_and_vote(
    sides: _Sides,
    partner: Int64[Tensor, " n"],
    settings: SelfLearningSettings,
    progress: Progress,
) -> Votes:
    """Pairs from first partners (n,), and the votes of held-out maps on them."""
    x, y, seeds = sides.x.along, sides.y.along, sides.seeds
    # The seeds in place of pairs that contradict them.
    start = partner.clone()
    start[torch.isin(start, seeds[:, 1])] = -1
    start[seeds[:, 0]] = seeds[:, 1]
    pairs = neighbours.partner_pairs(start)
    for _ in range(REFINEMENTS):
        before, partner = partner, neighbours.learn_and_match(x, y, pairs, beat=progress.beat)
        pairs = neighbours.partner_pairs(partner)
        stability = estimate.attempt_agreement(before, partner)
        progress.step(stability=stability)
        if stability >= STABLE:
            break
    votes = estimate.vote(x, y, pairs, seeds, seed=settings.seed, beat=progress.beat)
    progress.step()
    return votes


def _measure_chance(
    sides: _Sides, settings: SelfLearningSettings, progress: Progress
) -> Confirmation:
    """What the same steps confirm with the target's directions scrambled and random seeds."""
    generator = torch.Generator().manual_seed(settings.seed)
    count = min(CHANCE_SEEDS, sides.smaller)
    seeds = [
        torch.randperm(len(side.along), generator=generator)[:count] for side in (sides.x, sides.y)
    ]
    scrambled = sides.y.scrambled(settings.seed, beat=progress.beat)
    unrelated = _Sides(sides.x, scrambled, torch.stack(seeds, dim=1).to(sides.seeds))
    partner = _attempt(
        unrelated,
        0,
        CHANCE_ROUNDS,
        seed=settings.seed,
        beat=progress.beat,
        on_round=lambda _: progress.step(),
    )
    facts = dict(progress.facts)
    votes = _refine_and_vote(unrelated, partner, settings, progress)
    progress.facts = facts  # those of the real pools
    return _confirmation(unrelated, votes)


def _confirmation(sides: _Sides, votes: Votes) -> Confirmation:
    return Confirmation(votes.share, votes.share * (len(votes.pairs) / sides.smaller))


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


def _rounds(number: int) -> int:
    """The rounds of an attempt."""
    return ROUNDS * (1 if number < len(VARIANTS) else 2)


def _rounds_before(number: int) -> int:
    """The rounds of all attempts before this one."""
    return sum(map(_rounds, range(number)))


def _total_steps(attempts: int) -> int:
    """The largest number of steps: rounds, refinements and votes of both runs, and trials."""
    return _rounds_before(attempts) + CHANCE_ROUNDS + 2 * (REFINEMENTS + 1) + orphans.MAX_TRIALS
