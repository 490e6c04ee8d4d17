"""The steps of self-learning: attempts until two of them agree, refinement, confirmation; a
checkpoint at every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from app.maths.bootstrap import annealing, estimate, neighbours
from app.maths.bootstrap.annealing import AnnealingState, Directions, Schedule
from app.maths.bootstrap.pools import OnStep, State, Step

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
    schedule: Schedule = field(default_factory=Schedule)
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
        while self._needs_attempt():
            self._run_attempt()
        while self._needs_refinement():
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

    # progress

    def _beat(self) -> None:
        self.on_step(Step(self._done(), most_steps(self.settings), dict(self.facts)))

    def _step(self) -> None:
        self.on_step(
            Step(self._done(), most_steps(self.settings), dict(self.facts), self.snapshot())
        )

    def _done(self) -> int:
        done = _total_rounds(self.settings, len(self.partners)) + (
            self.annealing.done if self.annealing else 0
        )
        return (
            (done if self.current is None else _total_rounds(self.settings, self.settings.attempts))
            + self.refinements
            + self.halvings
        )

    # checkpoints

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
        if self.current is not None:
            return False
        if self.annealing is not None or not self.partners:
            return True
        agreed, _ = self._consensus()
        count, most = len(self.partners), self.settings.attempts
        if count < min(2, most) or (count < most and agreed < self.settings.agreed):
            return True
        self._begin_refinement()
        return False

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
            self._step()
        q = annealing.map_rows(x, self.annealing.overlap, schedule.flattening)
        partner = neighbours.mutual_partners(q, y, beat=self._beat)
        self.partners.append(partner)
        self.annealing = None
        agreed, _ = self._consensus()
        self.facts |= {"pairs": float((partner >= 0).sum()), "agreement": agreed}
        self._step()

    def _schedule(self, number: int) -> Schedule:
        schedule = replace(self.settings.schedule, rounds=_attempt_rounds(self.settings, number))
        schedule = replace(schedule, **VARIANTS[number % len(VARIANTS)])  # type: ignore[arg-type]
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

    def _begin_refinement(self) -> None:
        """Begin refinement with the common pairs of the two attempts that agree most, and the
        seeds.
        """
        _, (one, other) = self._consensus()
        first, second = self.partners[one], self.partners[other]
        self.current = torch.where(first == second, first, torch.full_like(first, -1))

    # refinement and confirmation

    def _needs_refinement(self) -> bool:
        return (
            self.halvings == 0
            and self.refinements < self.settings.refinements
            and self.stability < self.settings.stable
        )

    def _refine(self) -> None:
        assert self.current is not None
        partner = neighbours.learn_and_match(
            self.x.along, self.y.along, self._with_seeds(self.current), beat=self._beat
        )
        self.stability = estimate.attempt_agreement(self.current, partner)
        self.current, self.refinements = partner, self.refinements + 1
        self.facts |= {"pairs": float((partner >= 0).sum()), "stability": self.stability}
        self._step()

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
        self._step()

    def _with_seeds(self, partner: Int64[Tensor, " n"]) -> Int64[Tensor, "p 2"]:
        """The pairs of a first matching, with the seeds in place of pairs that contradict them."""
        if self.refinements or not len(self.seeds):
            return neighbours.partner_pairs(partner)
        partners = partner.clone()
        partners[torch.isin(partners, self.seeds[:, 1])] = -1
        partners[self.seeds[:, 0]] = self.seeds[:, 1]
        return neighbours.partner_pairs(partners)


def most_steps(settings: SelfLearningSettings) -> int:
    """The largest number of steps of a run."""
    return (
        _total_rounds(settings, settings.attempts) + settings.refinements + settings.confirmations
    )


def _total_rounds(settings: SelfLearningSettings, attempts: int) -> int:
    """The rounds of the first `attempts` attempts together."""
    return sum(_attempt_rounds(settings, number) for number in range(attempts))


def _attempt_rounds(settings: SelfLearningSettings, attempt: int) -> int:
    return settings.rounds * (1 if attempt < len(VARIANTS) else 2)
