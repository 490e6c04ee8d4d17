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
This module claims no pair to be right; `estimate_right` estimates the share. docs/self-learning.md
explains the steps and their ablation.
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
        told = self.estimate
        return {
            "right": told.right,
            "agreement": told.agreement,
            "confirmed": told.confirmed,
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
    rows = _participating_rows(len(pools.x), settings.rows, known[:, 0], settings.seed)
    taking_part = torch.stack(
        [torch.searchsorted(rows, known[:, 0].contiguous()), known[:, 1]], dim=1
    )
    some = None if len(rows) == len(pools.x) else rows.to(pools.device)
    x, y = principal_directions(pools.x, some, beat=beat), principal_directions(pools.y, beat=beat)
    run = _Runs(
        SelfLearningRun(x, y, taking_part.to(pools.device), settings, pools.memory, report),
        rows,
        state or {},
        report,
    )
    learnt = _result(run, seeds, run.worth())
    report(Step(total, total, run.course.facts))
    return learnt


@dataclass(eq=False)
class _Runs:
    """The run on the pools, then the run that measures chance, then orphans: the parts of a
    checkpoint.

    rows    (r,) of the source pool that take part
    state   of the checkpoint that it continues, or empty
    chance  the run that measures chance; None where the result has no credibility anyway
    """

    course: SelfLearningRun
    rows: Int64[Tensor, " r"]
    state: State
    report: OnStep
    chance: SelfLearningRun | None = None

    def worth(self) -> float:
        """Run both; returns the credibility of the first one's result, in [0, 1]."""
        if self.state:
            self.course.restore(
                {name: held for name, held in self.state.items() if "." not in name}
            )
        self.course.run()
        agreed, outcome = self.course.agreed, self.course.outcome
        worth = answer_credibility(agreed, outcome)
        if worth:
            self.chance = self._chance()
            self.chance.run()
            worth = answer_credibility(agreed, outcome, self.chance.outcome)
        return worth

    def try_orphans(self, pairs: Int64[Tensor, "p 2"], given: float) -> orphans.OrphanTrials:
        """Trials on pairs (p, 2) of all rows, a share `given` of the smaller pool; a trial is a
        step.
        """
        own = torch.stack(
            [torch.searchsorted(self.rows, pairs[:, 0].contiguous()), pairs[:, 1]], dim=1
        )
        own, course, settings = own.to(self.course.seeds.device), self.course, self.course.settings
        done = _total_steps(settings)
        held = self._held(self.state, ORPHANS_PREFIX)
        tried = orphans.OrphanTrials(*held["tried"].tolist()) if held else orphans.OrphanTrials()
        assert self.chance is not None
        before = {**course.snapshot(), **_prefixed(CHANCE_PREFIX, self.chance.snapshot())}
        while tried.wants(len(own), given):

            def beat(trials: int = tried.trials) -> None:
                self.report(Step(done + trials, done, course.facts))

            tried = orphans.run_trial(
                course.x.along,
                course.y.along,
                own,
                tried,
                seed=settings.seed,
                memory=course.memory,
                beat=beat,
            )
            counts = torch.tensor([tried.trials, tried.made, tried.found])
            self.report(
                Step(
                    done + tried.trials,
                    done,
                    course.facts,
                    {**before, f"{ORPHANS_PREFIX}tried": counts},
                )
            )
        return tried

    def _chance(self) -> SelfLearningRun:
        """The run that measures chance: the target's directions scrambled, seeds drawn at random;
        continued from the checkpoint.
        """
        course, settings = self.course, _chance_settings(self.course.settings)
        done, before = most_steps(course.settings), course.snapshot()

        def on_step(step: Step) -> None:
            held = step.state and {**before, **_prefixed(CHANCE_PREFIX, step.state)}
            self.report(Step(done + step.done, step.total, course.facts, held))

        def beat() -> None:
            self.report(Step(done, done, course.facts))

        generator = torch.Generator().manual_seed(settings.seed)
        count = min(CHANCE_SEEDS, course.smaller)
        drawn = [
            torch.randperm(len(side.along), generator=generator)[:count]
            for side in (course.x, course.y)
        ]
        scrambled = course.y.scrambled(settings.seed, beat=beat)
        other = SelfLearningRun(
            course.x,
            scrambled,
            torch.stack(drawn, dim=1).to(course.seeds),
            settings,
            course.memory,
            on_step,
        )
        if held := self._held(self.state, CHANCE_PREFIX):
            other.restore(held)
        return other

    @staticmethod
    def _held(state: State, part: str) -> State:
        return {
            name.removeprefix(part): held for name, held in state.items() if name.startswith(part)
        }


def _prefixed(part: str, state: State) -> State:
    return {part + name: held for name, held in state.items()}


def _total_steps(settings: SelfLearningSettings) -> int:
    """The largest number of steps of both runs."""
    return most_steps(settings) + most_steps(_chance_settings(settings))


def _chance_settings(settings: SelfLearningSettings) -> SelfLearningSettings:
    fewer = min(CHANCE_REFINEMENTS, settings.refinements)
    return replace(
        settings, attempts=1, rounds=min(CHANCE_ROUNDS, settings.rounds), refinements=fewer
    )


def _result(run: _Runs, seeds: list[tuple[int, int]], worth: float) -> SelfLearningResult:
    """The result of both runs."""
    course, rows = run.course, run.rows
    votes = course.votes
    votes = replace(votes, pairs=torch.stack([rows[votes.pairs[:, 0]], votes.pairs[:, 1]], dim=1))
    accepted = votes.confirmed > LIKELY_RIGHT
    sure, size = pair_confidence(votes, worth), course.settings.size
    # The most confident of the returned pairs.
    best = sure[accepted].sort(descending=True).values[:size]
    told = estimate_right(
        votes, best, agreed=course.agreed, chance=run.chance.outcome if run.chance else None
    )
    # A result that is mostly wrong cannot identify wrong seeds.
    wrong = (
        wrong_seeds(votes, seed_tensor(seeds))
        if len(best) and float(best.mean()) > LIKELY_RIGHT
        else []
    )
    if not wrong and not worth:
        told = replace(told, seeds_confirmed=math.nan)
    believed = [row for row in range(len(seeds)) if row not in set(wrong)]
    pairs, certainty = _seeds_first(
        votes.pairs[accepted], sure[accepted], [seeds[row] for row in believed], told.right
    )
    told, share = _discount_orphans(run, pairs, told)
    certain = torch.searchsorted(
        rows, votes.pairs[accepted & (sure * share > LIKELY_RIGHT), 0].contiguous()
    )
    ask = rows[rows_to_label(course.x, course.seeds[believed, 0].cpu(), certain, ROWS_TO_LABEL)]
    return SelfLearningResult(
        pairs[:size], (certainty * share)[:size], told, wrong, ask, len(course.partners), votes
    )


def _discount_orphans(
    run: _Runs, pairs: Int64[Tensor, "p 2"], told: BootstrapEstimate
) -> tuple[BootstrapEstimate, float]:
    """The estimate, and the factor of every confidence, after a discount for pairs whose items
    probably have no partner.
    """
    if not told.right:
        return told, 1.0
    share = len(pairs) / run.course.smaller
    tried = run.try_orphans(pairs, share)
    right = min(told.right, max(LEAST_ORPHAN_FACTOR, tried.right(len(pairs), share)))
    return replace(told, right=right, orphans_paired=tried.share), right / told.right


def _seeds_first(
    pairs: Int64[Tensor, "p 2"],
    sure: Float32[Tensor, " p"],
    seeds: list[tuple[int, int]],
    right: float,
) -> tuple[Int64[Tensor, "q 2"], Float32[Tensor, " q"]]:
    """Seeds first, then the pairs that do not contradict them, the most confident first."""
    known = seed_tensor(seeds)
    others = ~(torch.isin(pairs[:, 0], known[:, 0]) | torch.isin(pairs[:, 1], known[:, 1]))
    order = sure[others].argsort(descending=True, stable=True)
    kept = torch.cat([known, pairs[others][order]])
    return kept, torch.cat(
        [torch.full((len(known),), max(right, 0.0)), sure[others][order]]
    ).float()


def seed_tensor(seeds: list[tuple[int, int]]) -> Int64[Tensor, "s 2"]:
    """The rows (i, j) of the seeds as a tensor."""
    return torch.tensor(seeds, dtype=torch.int64).reshape(-1, 2)


def _participating_rows(
    rows: int, most: int, always: Int64[Tensor, " s"], seed: int
) -> Int64[Tensor, " r"]:
    """At most `most` rows, drawn uniformly, in order; rows in `always` take part anyway."""
    if rows <= most:
        return torch.arange(rows)
    drawn = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    others = drawn[~torch.isin(drawn, always)]
    return torch.cat([always, others[: max(0, most - len(always))]]).sort().values
