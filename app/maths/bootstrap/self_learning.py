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
   any result would confirm. Orphans (orphans.py): items whose partner is removed show how readily
   items without a partner are paired.
This module claims no pair to be right; `estimate_right` estimates the share.
docs/explanation/self-learning.md explains the steps and their ablation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from app.maths.bootstrap import orphans
from app.maths.bootstrap.annealing import principal_directions
from app.maths.bootstrap.attempts import SelfLearningRun, SelfLearningSettings, most_steps
from app.maths.bootstrap.estimate import (
    BootstrapEstimate,
    Votes,
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
#: Prefixes of their parts of a checkpoint.
CHANCE_PREFIX, ORPHANS_PREFIX = "chance.", "orphans."


@dataclass(frozen=True, eq=False)
class SelfLearningResult:
    """The result of self-learning.

    pairs        (p, 2) accepted rows (i of x, j of y), believed seeds first, then the most
                 confident; no row twice
    confidence   (p,) probability that each is right
    estimate     of the share that is right
    wrong_seeds  rows of the seeds that the others contradict
    ask          (a,) rows of x whose partner would help most
    attempts     the number of attempts
    votes        on all mutual pairs, accepted or not
    """

    pairs: Int64[Tensor, "p 2"]
    confidence: Float32[Tensor, " p"]
    estimate: BootstrapEstimate
    wrong_seeds: list[int]
    ask: Int64[Tensor, " a"]
    attempts: int
    votes: Votes

    @property
    def facts(self) -> dict[str, float]:
        """Numbers of the whole run."""
        estimate = self.estimate
        return {
            "right": estimate.right,
            "agreement": estimate.agreement,
            "confirmed": estimate.confirmed,
            "attempts": float(self.attempts),
        }


@torch.no_grad()
def learn(
    pools: Pools,
    seeds: list[tuple[int, int]],
    settings: SelfLearningSettings,
    *,
    state: State | None = None,
    on_step: OnStep = ignore_step,
) -> SelfLearningResult:
    """All pairs that follow from the seeds; without seeds, from an unseeded start.

    state  a checkpoint of an earlier run with equal arguments; the result is that of an
           uninterrupted run
    Deterministic for equal inputs, settings, device and number of threads. Raises InvalidSeeds.
    """
    check_pairs(seeds, source=len(pools.x), target=len(pools.y))
    total = _total_steps(settings) + orphans.MOST_TRIALS

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
    runs = _Runs(
        SelfLearningRun(x, y, taking_part.to(pools.device), settings, pools.memory, report),
        rows,
        state or {},
        report,
    )
    result = _result(runs, seeds, runs.run())
    report(Step(total, total, runs.main.facts))
    return result


@dataclass(eq=False)
class _Runs:
    """The run on the pools, then the run that measures chance, then orphans: the parts of a
    checkpoint.

    rows    (r,) of the source pool that take part
    state   of the checkpoint that it continues, or empty
    chance  the run that measures chance; None while the result has no credibility to correct
    """

    main: SelfLearningRun
    rows: Int64[Tensor, " r"]
    state: State
    report: OnStep
    chance: SelfLearningRun | None = None

    def run(self) -> float:
        """Run both; returns the credibility of the first one's result, in [0, 1]."""
        if self.state:
            self.main.restore(
                {name: tensor for name, tensor in self.state.items() if "." not in name}
            )
        self.main.run()
        agreed, confirmation = self.main.agreed, self.main.confirmation
        credibility = answer_credibility(agreed, confirmation)
        if credibility:
            self.chance = self._chance_run()
            self.chance.run()
            credibility = answer_credibility(agreed, confirmation, self.chance.confirmation)
        return credibility

    def run_orphan_trials(
        self, pairs: Int64[Tensor, "p 2"], pair_share: float
    ) -> orphans.OrphanTrials:
        """Trials on pairs (p, 2) of all rows, `pair_share` of the smaller pool; each is a step."""
        own_pairs = torch.stack(
            [torch.searchsorted(self.rows, pairs[:, 0].contiguous()), pairs[:, 1]], dim=1
        )
        own_pairs, main, settings = (
            own_pairs.to(self.main.seeds.device),
            self.main,
            self.main.settings,
        )
        done = _total_steps(settings)
        stored = self._part_of(self.state, ORPHANS_PREFIX)
        orphan_trials = (
            orphans.OrphanTrials(*stored["tried"].tolist()) if stored else orphans.OrphanTrials()
        )
        assert self.chance is not None
        before = {**main.snapshot(), **_prefixed(CHANCE_PREFIX, self.chance.snapshot())}
        while orphan_trials.needs_another(len(own_pairs), pair_share):

            def beat(trials: int = orphan_trials.trials) -> None:
                self.report(Step(done + trials, done, main.facts))

            orphan_trials = orphans.run_trial(
                main.x.along,
                main.y.along,
                own_pairs,
                orphan_trials,
                seed=settings.seed,
                memory=main.memory,
                beat=beat,
            )
            counts = torch.tensor(
                [orphan_trials.trials, orphan_trials.orphans, orphan_trials.paired]
            )
            self.report(
                Step(
                    done + orphan_trials.trials,
                    done,
                    main.facts,
                    {**before, f"{ORPHANS_PREFIX}tried": counts},
                )
            )
        return orphan_trials

    def _chance_run(self) -> SelfLearningRun:
        """The run that measures chance: the target's directions scrambled, seeds drawn at random;
        continued from the checkpoint.
        """
        main, settings = self.main, _chance_settings(self.main.settings)
        done, before = most_steps(main.settings), main.snapshot()

        def on_step(step: Step) -> None:
            stored = step.state and {**before, **_prefixed(CHANCE_PREFIX, step.state)}
            self.report(Step(done + step.done, step.total, main.facts, stored))

        def beat() -> None:
            self.report(Step(done, done, main.facts))

        generator = torch.Generator().manual_seed(settings.seed)
        count = min(CHANCE_SEEDS, main.smaller)
        random_seeds = [
            torch.randperm(len(side.along), generator=generator)[:count]
            for side in (main.x, main.y)
        ]
        scrambled = main.y.scrambled(settings.seed, beat=beat)
        chance = SelfLearningRun(
            main.x,
            scrambled,
            torch.stack(random_seeds, dim=1).to(main.seeds),
            settings,
            main.memory,
            on_step,
        )
        if stored := self._part_of(self.state, CHANCE_PREFIX):
            chance.restore(stored)
        return chance

    @staticmethod
    def _part_of(state: State, part: str) -> State:
        return {
            name.removeprefix(part): tensor
            for name, tensor in state.items()
            if name.startswith(part)
        }


def _prefixed(part: str, state: State) -> State:
    return {part + name: tensor for name, tensor in state.items()}


def _total_steps(settings: SelfLearningSettings) -> int:
    """The largest number of steps of both runs."""
    return most_steps(settings) + most_steps(_chance_settings(settings))


def _chance_settings(settings: SelfLearningSettings) -> SelfLearningSettings:
    fewer = min(CHANCE_REFINEMENTS, settings.refinements)
    return replace(
        settings, attempts=1, rounds=min(CHANCE_ROUNDS, settings.rounds), refinements=fewer
    )


def _result(runs: _Runs, seeds: list[tuple[int, int]], credibility: float) -> SelfLearningResult:
    """The result of both runs."""
    main, rows = runs.main, runs.rows
    votes = main.votes
    votes = replace(votes, pairs=torch.stack([rows[votes.pairs[:, 0]], votes.pairs[:, 1]], dim=1))
    accepted = votes.confirmed > LIKELY_RIGHT
    confidences, size = pair_confidence(votes, credibility), main.settings.size
    # The most confident of the returned pairs.
    most_confident = confidences[accepted].sort(descending=True).values[:size]
    estimate = estimate_right(
        votes,
        most_confident,
        agreed=main.agreed,
        chance=runs.chance.confirmation if runs.chance else None,
    )
    # A result that is mostly wrong cannot identify wrong seeds.
    wrong_rows = (
        wrong_seeds(main.votes, main.seeds.cpu(), main.x.along, main.y.along)
        if len(most_confident) and float(most_confident.mean()) > LIKELY_RIGHT
        else []
    )
    if not wrong_rows and not credibility:
        estimate = replace(estimate, seeds_confirmed=math.nan)
    believed = [row for row in range(len(seeds)) if row not in set(wrong_rows)]
    pairs, certainty = _seeds_first(
        votes.pairs[accepted],
        confidences[accepted],
        [seeds[row] for row in believed],
        estimate.right,
    )
    estimate, share = _discount_orphans(runs, pairs, estimate)
    certain = torch.searchsorted(
        rows, votes.pairs[accepted & (confidences * share > LIKELY_RIGHT), 0].contiguous()
    )
    ask = rows[rows_to_label(main.x, main.seeds[believed, 0].cpu(), certain, ROWS_TO_LABEL)]
    return SelfLearningResult(
        pairs[:size],
        (certainty * share)[:size],
        estimate,
        wrong_rows,
        ask,
        len(main.partners),
        votes,
    )


def _discount_orphans(
    runs: _Runs, pairs: Int64[Tensor, "p 2"], estimate: BootstrapEstimate
) -> tuple[BootstrapEstimate, float]:
    """The estimate, and the factor of every confidence, after a discount for pairs whose items
    probably have no partner.
    """
    if not estimate.right:
        return estimate, 1.0
    share = len(pairs) / runs.main.smaller
    trials = runs.run_orphan_trials(pairs, share)
    right = min(estimate.right, max(LEAST_ORPHAN_FACTOR, trials.right_share(len(pairs), share)))
    return replace(estimate, right=right, orphans_paired=trials.share), right / estimate.right


def _seeds_first(
    pairs: Int64[Tensor, "p 2"],
    confidences: Float32[Tensor, " p"],
    seeds: list[tuple[int, int]],
    right: float,
) -> tuple[Int64[Tensor, "q 2"], Float32[Tensor, " q"]]:
    """Seeds first, then the pairs that do not contradict them, the most confident first."""
    known = seed_tensor(seeds)
    others = ~(torch.isin(pairs[:, 0], known[:, 0]) | torch.isin(pairs[:, 1], known[:, 1]))
    order = confidences[others].argsort(descending=True, stable=True)
    ordered = torch.cat([known, pairs[others][order]])
    return ordered, torch.cat(
        [torch.full((len(known),), max(right, 0.0)), confidences[others][order]]
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
