"""Cases of `bootstrap` and `alignment`: pairs that grow from few or none."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from app.maths.alignment import alignment, anchored, components
from app.maths.bootstrap import (
    annealing,
    estimate,
    methods,
    neighbours,
    paper,
    pools,
    self_learning,
    sinkhorn,
)
from app.maths.bootstrap.attempts import SelfLearningSettings
from app.maths.bootstrap.neighbours import no_beat
from tests.maths.alignment.clouds import two_pools
from tests.maths.bootstrap.clouds import every, order, views
from tests.maths.devices.common import Case, On, pair_of_clouds

SOURCE, TARGET = views(0, 150)
FITTED = pools.fit_pools(SOURCE, TARGET)
X, Y = FITTED.x, FITTED.y
SEEDS = [(i, i) for i in range(8)]
LEARNING = SelfLearningSettings(attempts=2, rounds=5, refinements=1)
OVERLAP = (X[:20].T @ Y[:20]).contiguous()
PARTNER = torch.where(torch.arange(150) % 4 > 0, torch.arange(150), -1)
ALIGNED = two_pools(1_000)
UNPAIRED = anchored.KnownAndUnpaired(SOURCE[:12], TARGET[:12], SOURCE[12:], TARGET[12:])
ANCHORED = anchored.AnchoredSettings(stages=((2, 60), (1, 90)), neighbours=5)


def of(on: On) -> pools.Pools:
    return pools.Pools(on(X), on(Y))


def grown(grow: Any, settings: object, on: On) -> object:
    """The result, and that of a run that continues from each of its checkpoints."""
    steps: list[pools.Step] = []
    result = grow(of(on), SEEDS, settings, on_step=steps.append)
    states = [step.state for step in steps if step.state is not None]
    resumed = grow(of(on), SEEDS, settings, state=states[len(states) // 2])
    return [result, resumed, states[-1]]


def learnt_exchanged(on: On) -> object:
    """The smaller pool as the source, of which not all rows take part."""
    given = pools.Pools(on(X[:110]), on(Y))
    return self_learning.learn(given, SEEDS, replace(LEARNING, rows=105))


def rounds(on: On) -> object:
    x, y = (
        annealing.principal_directions(on(side)).coordinates(power=0.5, dimensions=12)
        for side in (X, Y)
    )
    schedule = annealing.Schedule(rounds=3)
    state = annealing.start_annealing(on(OVERLAP), target=150)
    for _ in range(3):
        state = annealing.anneal_round(x, y, on(OVERLAP), state, schedule, beat=no_beat)
    return state


def votes(on: On) -> estimate.Votes:
    pairs, seeds = on(every(150)), on(every(8))
    half = on(estimate.draw_half(150, 0, 0))
    chosen, ranks = estimate.confirm_pairs(on(X), on(Y), pairs, seeds, half, beat=no_beat)
    return estimate.Votes.counted(pairs, [chosen] * 3, [ranks] * 3)


def wrong(on: On) -> object:
    swapped = on(torch.tensor([[0, 0], [1, 2], [3, 3]])).cpu()
    return estimate.wrong_seeds(replace(votes(on), seed_rank=torch.zeros(3)), swapped, on(X), on(Y))


def matches(on: On) -> neighbours.BestMatches:
    offsets = neighbours.hubness_offsets(on(X), on(Y), 5)
    return neighbours.best_matches(on(X), on(Y), offset_q=offsets[0], offset_y=offsets[1])


def plan(on: On, what: Any) -> object:
    potential = sinkhorn.source_potential(on(X), on(Y), epsilon=0.3, steps=2)
    return what(on(X), on(Y), potential, epsilon=0.3)


def parts(on: On) -> tuple[components.Components, components.Components]:
    both = (components.independent_components(on(side), 8, seed=1) for side in ALIGNED[:2])
    return next(both), next(both)


def squares(on: On) -> object:
    targets = paper.TargetRelatives(on(torch.arange(150)), on(X[:, :5]), on(torch.arange(150)))
    return paper.mean_squares(on(Y), on(Y[:, :5]), targets)


def trials(on: On) -> object:
    done = estimate.OrphanTrials()
    for _ in range(2):
        done = estimate.run_trial(on(X), on(Y), on(every(150)), done, seed=0, beat=no_beat)
    return done


def judged_pairs(on: On) -> object:
    given = pools.GrownPairs(every(60), torch.full((60,), torch.nan), {"loss": 1.0})
    return methods.judge_pairs(of(on), SEEDS, given, seed=0)


def unpaired(on: On) -> anchored.KnownAndUnpaired:
    return anchored.KnownAndUnpaired(
        *(on(getattr(UNPAIRED, name)) for name in ("known_x", "known_y", "x", "y"))
    )


PAPER = paper.PaperSettings(size=30, steps=4)

CASES: dict[str, Case] = {
    "bootstrap.paper.mean_squares": squares,
    "bootstrap.annealing.principal_directions": lambda on: [
        annealing.principal_directions(on(X), on(torch.arange(9)), most=6),
        annealing.principal_directions(on(pair_of_clouds(20)[0].repeat(1, 40)), most=6).variance,
    ],
    "bootstrap.annealing.start_annealing": lambda on: annealing.start_annealing(
        on(OVERLAP), target=5
    ),
    "bootstrap.annealing.anneal_round": rounds,
    "bootstrap.annealing.map_rows": lambda on: annealing.map_rows(on(X), on(OVERLAP), 0.5),
    "bootstrap.annealing.find_temperature": lambda on: annealing.find_temperature(
        on(X), on(Y), on(torch.zeros(150)), 20.0, beat=no_beat
    ),
    "bootstrap.estimate.attempt_agreement": lambda on: estimate.attempt_agreement(
        on(PARTNER), on(PARTNER.roll(1))
    ),
    "bootstrap.estimate.confirm_pairs": votes,
    "bootstrap.estimate.estimate_right": lambda on: estimate.estimate_right(
        votes(on), votes(on).confirmed, agreed=0.9, chance=None
    ),
    "bootstrap.estimate.pair_confidence": lambda on: estimate.pair_confidence(votes(on), 0.8),
    "bootstrap.estimate.wrong_seeds": wrong,
    "bootstrap.estimate.rows_to_label": lambda on: estimate.rows_to_label(
        annealing.principal_directions(on(X)), torch.arange(5), torch.arange(3, 60), 4
    ),
    "bootstrap.estimate.d_optimal_rows": lambda on: estimate.d_optimal_rows(
        on(X), on(torch.arange(5)), on(torch.arange(150) < 40), 4
    ),
    "bootstrap.estimate.median_ranks": lambda on: estimate.median_ranks(on(X)),
    "bootstrap.self_learning.learn/exchanged": learnt_exchanged,
    "bootstrap.methods.run": lambda on: [
        methods.run(of(on), SEEDS, settings) for settings in (LEARNING, PAPER)
    ],
    "bootstrap.methods.judge_pairs": judged_pairs,
    "bootstrap.neighbours.nearest_rows": lambda on: neighbours.nearest_rows(on(X), on(Y), 5),
    "bootstrap.neighbours.hubness_offsets": lambda on: neighbours.hubness_offsets(on(X), on(Y), 5),
    "bootstrap.neighbours.best_matches": matches,
    "bootstrap.neighbours.mutual_pairs": lambda on: neighbours.mutual_pairs(matches(on)),
    "bootstrap.neighbours.product_blocks": lambda on: torch.cat(
        [block.clone() for _, block in neighbours.product_blocks(on(X), on(Y), beat=no_beat)]
    ),
    "bootstrap.neighbours.product": lambda on: neighbours.product(on(X), on(Y).T, beat=no_beat),
    "bootstrap.estimate.run_trial": trials,
    "bootstrap.paper.grow": partial(grown, paper.grow, PAPER),
    "bootstrap.paper.grow/rows": partial(grown, paper.grow, replace(PAPER, argmax="rows")),
    "bootstrap.pools.fit_pools": lambda on: pools.fit_pools(on(SOURCE), on(TARGET)),
    "bootstrap.pools.mean_and_distance": lambda on: pools.mean_and_distance(on(SOURCE)),
    "bootstrap.neighbours.partner_pairs": lambda on: neighbours.partner_pairs(on(PARTNER)),
    "bootstrap.neighbours.graded_map": lambda on: neighbours.graded_map(on(X), on(Y)),
    "bootstrap.neighbours.mutual_partners": lambda on: neighbours.mutual_partners(
        on(X), on(Y), beat=no_beat
    ),
    "bootstrap.neighbours.learn_and_match": lambda on: neighbours.learn_and_match(
        on(X), on(Y), on(every(50)), beat=no_beat
    ),
    "bootstrap.self_learning.learn_as_given": partial(
        grown, self_learning.learn_as_given, LEARNING
    ),
    "bootstrap.self_learning.learn/unseeded": lambda on: self_learning.learn(of(on), [], LEARNING),
    "bootstrap.self_learning.draw_rows": lambda on: self_learning.draw_rows(
        50, 20, on(order(0, 5)).cpu(), 1
    ),
    "bootstrap.sinkhorn.sinkhorn": lambda on: sinkhorn.sinkhorn(on(X), on(Y), epsilon=0.3, steps=2),
    "bootstrap.sinkhorn.source_potential": lambda on: sinkhorn.source_potential(
        on(X), on(Y), epsilon=0.3, steps=2
    ),
    "bootstrap.sinkhorn.softmin": lambda on: sinkhorn.softmin(
        on(X), on(Y), on(torch.ones(150).double()), epsilon=0.3
    ),
    "bootstrap.sinkhorn.column_argmax": lambda on: plan(on, sinkhorn.column_argmax),
    "bootstrap.sinkhorn.logit_blocks": lambda on: torch.cat(
        [
            block.clone()
            for _, block in sinkhorn.logit_blocks(
                on(X), on(Y), on(torch.ones(150).double()), epsilon=0.3, beat=no_beat
            )
        ]
    ),
    "bootstrap.annealing.centroid_overlap": lambda on: annealing.centroid_overlap(
        on(X), on(Y), annealing.CentroidSettings(8, 2), seed=0, beat=no_beat
    ),
    "alignment.alignment.align_pools": lambda on: alignment.align_pools(
        on(ALIGNED[0]),
        on(ALIGNED[1]),
        settings=alignment.AlignmentSettings(attempts=2, components=8, draws=1, size=50),
    ),
    "alignment.alignment.compare_maps": lambda on: alignment.compare_maps(
        on(ALIGNED[0]), on(ALIGNED[1]), (on(ALIGNED[2]), on(ALIGNED[2] + 0.1)), seed=0
    ),
    "alignment.anchored.align_by_anchors": lambda on: anchored.align_by_anchors(
        unpaired(on), ANCHORED
    ),
    "alignment.anchored.fit_with_unpaired": lambda on: anchored.fit_with_unpaired(
        unpaired(on), ANCHORED
    ),
    "alignment.anchored.fit_alone": lambda on: anchored.fit_alone(unpaired(on)),
    "alignment.anchored.correct": lambda on: anchored.correct(
        on(OVERLAP.double()), on(X[:9].double()), on(Y[:9].double())
    ),
    "alignment.anchored.rotate": lambda on: anchored.rotate(on(X), on(Y), 12, ANCHORED),
    "alignment.anchored.partial_whitening": lambda on: anchored.partial_whitening(on(X), 0.75),
    "alignment.anchored.mutual_neighbours": lambda on: anchored.mutual_neighbours(on(X), on(Y), 5),
    "alignment.components.independent_components": parts,
    "alignment.components.match_components": lambda on: components.match_components(
        *parts(on), starts=2, seed=0
    ),
    "alignment.alignment.orthogonal": lambda on: alignment.orthogonal(on(OVERLAP)),
    "alignment.alignment.refine": lambda on: alignment.refine(
        on(X), on(Y), on(alignment.orthogonal(OVERLAP)), alignment.Rounds(2, 90, 4), seed=0
    ),
    "alignment.alignment.neighbours": lambda on: alignment.neighbours(on(X), on(Y), 4),
    "alignment.alignment.mean_rows": lambda on: alignment.mean_rows(
        on(X), on(torch.arange(60).reshape(20, 3))
    ),
}
