"""Translates Parquet files to a file or a folder: what to do, what is done, and what comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from app.errors import Conflict, InvalidRequest
from app.services.bulk.pipeline import BulkWork, ShardResult
from app.services.bulk.places import PARQUET_SUFFIX, Place, find_inputs
from app.services.bulk.shard_files import PARTIAL_NAME, form_of
from app.services.bulk.shards import (
    MANIFEST_FILE,
    BulkShard,
    Manifest,
    cut,
    describe_shards,
    flagged_rows,
    open_parquet,
    read_manifest,
)

#: bytes of the larger vectors of one batch, and so of a row group of the output
BATCH_BYTES = 2**24

#: the end of the name of the folder that `--overwrite` fills before it replaces the old one
STAGING_SUFFIX = ".partial"

#: a shard with its input and its output
PlacedShard = tuple[BulkShard, Place, Place]

Engine = Callable[[BulkWork, Sequence[PlacedShard]], Iterable[ShardResult]]


@dataclass(frozen=True, eq=False)
class BulkPlan:
    """A run that has been checked. Nothing is written yet.

    target   the file or folder that the run leaves
    folder   where shards are written; None: the output is one file
    waiting  shards that are not complete
    flagged  flagged rows of the complete shards
    """

    work: BulkWork
    target: Place
    folder: Place | None
    manifest: Manifest
    shards: Sequence[PlacedShard]
    waiting: Sequence[PlacedShard]
    overwrite: bool
    flagged: int = 0

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard, _, _ in self.shards)

    @property
    def rows_waiting(self) -> int:
        return sum(shard.rows for shard, _, _ in self.waiting)


def default_batch_rows(dims: tuple[int, int]) -> int:
    """Return the rows of a batch for vectors of these dimensions."""
    return max(1, BATCH_BYTES // (4 * max(dims)))


def plan_translation(
    work: BulkWork, source: Place, target: Place, *, overwrite: bool = False
) -> BulkPlan:
    """Check inputs and output, and return what is to do. Writes nothing.

    Raises InvalidRequest, the errors of `find_column`, and Conflict for an output that exists or
    that another run began.
    """
    inputs = find_inputs(source)
    for place, _ in inputs:
        with open_parquet(place) as file:
            form_of(file, place.path, work.translator, work.column)
    one_file = source.is_file and target.path.endswith(PARQUET_SUFFIX) and not target.is_folder
    _require_apart(inputs, source, target)
    shards = cut(inputs, whole=one_file)
    manifest = Manifest(
        work.translator.id,
        work.translator.facts,
        work.column,
        describe_shards(shards),
    )
    by_path = {place.path: place for place, _ in inputs}
    if one_file:
        if target.is_file and not overwrite:
            raise Conflict(f"{target.path} exists. Choose another name, or add --overwrite.")
        placed = [(shard, by_path[shard.input], target) for shard in shards]
        return BulkPlan(work, target, None, manifest, placed, placed, overwrite)
    folder, replaces = _choose_folder(target, manifest, overwrite)
    placed = [(shard, by_path[shard.input], folder.below(shard.name)) for shard in shards]
    found = [flagged_rows(each[2], each[0], work.made_from(each[0])) for each in placed]
    waiting = [each for each, flagged in zip(placed, found, strict=True) if flagged is None]
    flagged = sum(filter(None, found))
    return BulkPlan(work, target, folder, manifest, placed, waiting, replaces, flagged)


def run_translation(plan: BulkPlan, engine: Engine) -> int:
    """Translate the waiting shards, and return the number of flagged rows of all shards.

    A later call for the same output continues after the last complete shard.
    """
    if plan.folder is None:
        return sum(result.flagged for result in engine(plan.work, plan.waiting))
    plan.manifest.write(plan.folder)
    flagged = plan.flagged + sum(each.flagged for each in engine(plan.work, plan.waiting))
    _delete_leftovers(plan.folder)
    if plan.overwrite:
        _replace_folder(plan, plan.folder)
    done = replace(plan.manifest, complete=True, flagged=flagged)
    done.write(plan.target)
    return flagged


def _require_apart(inputs: Sequence[tuple[Place, str]], source: Place, target: Place) -> None:
    """Raises InvalidRequest for an output that lies among the inputs."""
    where = target.path + "/"
    if any(place.path == target.path or place.path.startswith(where) for place, _ in inputs) or (
        source.is_folder and where.startswith(source.path + "/")
    ):
        raise InvalidRequest(
            f"The output {target.path} lies among the inputs. Choose a place outside of them."
        )


def _choose_folder(target: Place, manifest: Manifest, overwrite: bool) -> tuple[Place, bool]:
    """Return the folder to write to, and whether it replaces `target` at the end."""
    if target.is_file:
        raise Conflict(
            f"{target.path} is a file, and several inputs need a folder. Choose another output."
        )
    present = read_manifest(target)
    if present is None:
        if target.files():
            raise Conflict(
                f"The folder {target.path} holds files that this command did not write. "
                "Choose an empty folder."
            )
        return target, False
    different = present.differences(manifest)
    if not different and not (overwrite and present.complete):
        return target, False
    if not overwrite:
        raise Conflict(
            f"{target.path} was begun with the translator {present.translator}; this run has "
            f"{manifest.translator}. Different: {', '.join(different)}. Choose another folder, "
            "repeat the first command, or add --overwrite."
        )
    staging = target.beside(STAGING_SUFFIX)
    begun = read_manifest(staging)
    if begun is not None and not begun.same_as(manifest):
        _delete_shards(staging, begun)
    return staging, True


def _replace_folder(plan: BulkPlan, staging: Place) -> None:
    """Move complete shards over those of an earlier run, and delete what is left of it."""
    old = read_manifest(plan.target)
    plan.manifest.write(plan.target)  # from here on, a later run continues with these shards
    names = {shard.name for shard, _, _ in plan.shards}
    for before in old.shards if old is not None else ():
        if before["name"] not in names:
            plan.target.below(before["name"]).delete()
    for shard, _, _ in plan.shards:
        place = plan.target.below(shard.name)
        place.system.create_dir(place.path.rpartition("/")[0], recursive=True)
        place.system.move(staging.below(shard.name).path, place.path)
    staging.below(MANIFEST_FILE).delete()
    if not staging.files():
        staging.system.delete_dir(staging.path)


def _delete_leftovers(folder: Place) -> None:
    """Delete what killed processes began to write."""
    for name in folder.files():
        if PARTIAL_NAME.fullmatch(name.rpartition("/")[2]):
            folder.below(name).delete()


def _delete_shards(folder: Place, manifest: Manifest) -> None:
    for shard in manifest.shards:
        folder.below(shard["name"]).delete()
    folder.below(MANIFEST_FILE).delete()
