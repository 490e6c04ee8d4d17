"""Thousands of pairs from a handful of seeds: anneal until two attempts agree, refine, and confirm
each pair by maps without it.

1. Attempts (annealing.py), each with other coordinates, seed weights and breadth, until two of them
   find the same pairs: there are many wrong results and they differ, but only one right one. They
   end with the agreement `agreed`, or with the number of attempts.
2. Refinement (refinement.py) from the pairs that both found: graded maps of the pools' leading
   directions, and mutual best matches by CSLS, until the pairs stay the same.
3. Confirmation (estimate.py): maps of random halves judge the pairs of the other half. Most of them
   must confirm a pair.
4. Chance: one short attempt from random seeds against a scrambled target pool shows the share that
   any result would confirm. Orphans (estimate.py): items whose partner is removed show how readily
   items without a partner are paired.
This module claims no pair to be right; `estimate_right` estimates the share.
docs/explanation/self-learning.md explains the steps and their ablation.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from app.maths.bootstrap import estimate
from app.maths.bootstrap.annealing import principal_directions
from app.maths.bootstrap.attempts import SelfLearningRun, SelfLearningSettings, most_steps
from app.maths.bootstrap.estimate import (
    Outcome,
    answer_credibility,
    estimate_right,
    pair_confidence,
    rows_to_label,
    wrong_seeds,
)
from app.maths.bootstrap.pools import OnStep, Pools, State, Step, check_pairs, ignore_step

#: In smaller pools, right and wrong cannot be distinguished.
FEWEST_POOL_ITEMS = 100
#: Rows that are named to be labelled next.
ROWS_TO_LABEL = 10
#: More likely right than wrong.
LIKELY_RIGHT = 0.5
#: Rounds, seeds and refinements of the run that measures chance.
CHANCE_ROUNDS, CHANCE_SEEDS, CHANCE_REFINEMENTS = 10, 10, 4
#: Orphans lower an estimate to this at least: where items have near twins, an orphan finds its
#: twin's partner.
LEAST_ORPHAN_FACTOR = 0.25
#: The prefix of the chance run's tensors in a checkpoint, and the name of the orphans' counts.
CHANCE_PREFIX, ORPHAN_COUNTS = "chance.", "orphans"


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
    wrong = set(found.wrong_seeds)
    believed = [place for row, place in enumerate(places) if row not in wrong]
    # The rows to label are those of the source as given.
    ask = rows_to_label(
        principal_directions(smaller),
        torch.tensor(believed, dtype=torch.int64),
        found.pairs[found.confidence > LIKELY_RIGHT, 1],
        ROWS_TO_LABEL,
    )
    pairs = torch.stack([rows[found.pairs[:, 1]], found.pairs[:, 0]], dim=1)
    return replace(found, pairs=pairs, ask=rows[ask])


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
    total = _total_steps(settings) + estimate.MOST_TRIALS

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
    settings, done = _chance_settings(main.settings), most_steps(main.settings)
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
    return most_steps(settings) + most_steps(_chance_settings(settings))


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
    agreed, confirmation, chance = main.agreed, main.confirmation, None
    credibility = answer_credibility(agreed, confirmation)
    if credibility:
        chance_run = _chance_run(main, state, report)
        chance = chance_run.confirmation
        credibility = answer_credibility(agreed, confirmation, chance)
    votes = main.votes
    accepted = votes.confirmed > LIKELY_RIGHT
    confidences, size = pair_confidence(votes, credibility), main.settings.size
    # The most confident of the returned pairs.
    most_confident = confidences[accepted].sort(descending=True).values[:size]
    estimate = estimate_right(votes, most_confident, agreed=agreed, chance=chance)
    # A result that is mostly wrong cannot identify wrong seeds.
    wrong_rows = (
        wrong_seeds(votes, main.seeds.cpu(), main.x.along, main.y.along)
        if len(most_confident) and float(most_confident.mean()) > LIKELY_RIGHT
        else []
    )
    if not wrong_rows and not credibility:
        estimate = replace(estimate, seeds_confirmed=math.nan)
    believed = [row for row in range(len(seeds)) if row not in set(wrong_rows)]
    pairs, certainty = _seeds_first(
        votes.pairs[accepted], confidences[accepted], main.seeds[believed].cpu(), estimate.right
    )
    share = 1.0
    if estimate.right:
        # A discount for pairs whose items probably have no partner.
        pair_share = len(pairs) / main.smaller
        trials = _run_orphan_trials(main, chance_run, pairs, pair_share, state, report)
        with_partner = max(LEAST_ORPHAN_FACTOR, trials.right_share(len(pairs), pair_share))
        right = min(estimate.right, with_partner)
        share = right / estimate.right
        estimate = replace(estimate, right=right, orphans_paired=trials.share)
    certain = votes.pairs[accepted & (confidences * share > LIKELY_RIGHT), 0]
    ask = rows_to_label(main.x, main.seeds[believed, 0].cpu(), certain, ROWS_TO_LABEL)
    facts = {
        "right": estimate.right,
        "agreement": estimate.agreement,
        "confirmed": estimate.confirmed,
        "attempts": float(len(main.partners)),
    }
    found = torch.stack([rows[pairs[:, 0]], pairs[:, 1]], dim=1)[:size]
    return Outcome(found, (certainty * share)[:size], estimate, wrong_rows, rows[ask], facts)


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


def seed_tensor(seeds: list[tuple[int, int]]) -> Int64[Tensor, "s 2"]:
    """The rows (i, j) of the seeds as a tensor."""
    return torch.tensor(seeds, dtype=torch.int64).reshape(-1, 2)


def draw_rows(rows: int, most: int, always: Int64[Tensor, " s"], seed: int) -> Int64[Tensor, " r"]:
    """The rows in `always` and uniformly drawn others, `most` in total, in ascending order."""
    if rows <= most:
        return torch.arange(rows)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    others = order[~torch.isin(order, always)]
    return torch.cat([always, others[: max(0, most - len(always))]]).sort().values
