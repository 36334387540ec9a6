"""`outrider plan --probe`: how much of each drafter survives, from a short run of the models themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from outrider.cli.plan_inputs import loadable
from outrider.cli.progress import progress_bar
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.bench.engine_subject import EngineSubject
    from outrider.bench.record import Acceptance, Answer, Task
    from outrider.plan.acceptance import Estimate
    from outrider.plan.memory import Model
    from outrider.plan.search import Method
    from outrider.types import PhaseSeconds

_WORKLOAD = "chat"
_PROMPTS = 12
_TOKENS = 48
_MOST_K = 8
_PLAIN = "plain"


@dataclass(frozen=True)
class Probe:
    """A short run of a target: prompts of a named workload, greedily, ``batch`` at a time or all there are.

    ``timing``: whether the plan is for this machine, so that what trained drafts take here is worth timing.
    """

    target: Model
    k_max: int
    batch: int
    timing: bool

    def run(self, drafters: Sequence[tuple[Method, str | None]], models: Mapping[str, Model]) -> list[Estimate]:
        """Survival of each drafter, and what a trained draft's token took beside the plain steps of the same run.

        Raises ConfigError for a drafter that does not run here, or a target too short, before anything is loaded.
        """
        from outrider.bench.harness import count_samples, measure
        from outrider.bench.record import Settings

        configs = {
            f"{i + 1} {method}": _config(method, models[ref] if ref is not None else None)
            for i, (method, ref) in enumerate(drafters)
        }
        k = min(self.k_max, _MOST_K)
        tasks, length = _tasks(loadable(self.target, "--probe"))
        subjects = self._subjects(configs, k, length)
        settings = [Settings(temperature=0.0, max_tokens=_TOKENS, ignore_eos=True)]
        answers: Mapping[str, list[Answer]] = defaultdict(list)
        with progress_bar() as report:
            total = count_samples(subjects, tasks, settings)
            # Configurations alternate, group by group: a machine that drifts changes plain steps and drafts alike.
            for done, each in enumerate(measure(subjects, tasks, settings, batch=min(self.batch, _PROMPTS)), start=1):
                if each.answer.error is not None:
                    raise ConfigError(f"--probe cannot tell ({each.answer.error}): give an --acceptance")
                answers[each.configuration].append(each.answer)
                report(f"probing {each.configuration}", done, total)
        timed = {name: answers[_PLAIN] if _timed(config) else [] for name, config in configs.items()}
        return [_estimate(answers[name], plain, k) for name, plain in timed.items()]

    def _subjects(self, configs: Mapping[str, Mapping[str, Any]], k: int, length: int) -> list[EngineSubject]:
        """One of each configuration over the same weights, and plain decoding where something is compared with it."""
        from outrider.bench.engine_subject import EngineSubject
        from outrider.llm import LLM

        llm = LLM(
            loadable(self.target, "--probe"),
            dtype=self.target.storage.dtype,
            quantization=self.target.storage.quantization,
            speculative_config=None,
            max_model_len=length,
            max_num_seqs=min(self.batch, _PROMPTS),
        )
        plain = [EngineSubject(_PLAIN, llm)] if self.timing and any(map(_timed, configs.values())) else []
        return plain + [
            EngineSubject(name, llm.with_speculation({**config, "num_speculative_tokens": k}))
            for name, config in configs.items()
        ]


def _config(method: Method, draft: Model | None) -> dict[str, Any]:
    if method == "ngram":
        return {"method": "ngram"}
    if method == "draft_model" and draft is not None:
        quantization = draft.storage.quantization
        more = {"quantization": quantization} if quantization else {}
        return {"method": "draft_model", "model": loadable(draft, "--probe"), **more}
    if method == "spire" and draft is not None and draft.reads is not None:
        return {"method": "spire", "model": draft.location}
    what = "the folder of a trained one as --draft, or " if method == "spire" else ""
    raise ConfigError(
        f"--probe runs ngram, draft models and trained SPIRe drafts, not {method} from sizes: give {what}an "
        "--acceptance for it"
    )


def _timed(config: Mapping[str, Any]) -> bool:
    """Draft models have curves of their own (--calibrate), and a lookup takes no time."""
    return bool(config["method"] == "spire")


def _tasks(reference: str) -> tuple[list[Task], int]:
    """Prompts that fit into the model's positions together with their answers, and the positions that they take."""
    from outrider.bench.subject import prompt_tokens
    from outrider.bench.workloads import load_workload
    from outrider.models.checkpoint import read_config
    from outrider.models.load import model_length
    from outrider.models.resolve import resolve
    from outrider.models.tokenizer import load_tokenizer

    files = resolve(reference)
    tokenizer = load_tokenizer(files)
    tasks = load_workload(_WORKLOAD, limit=_PROMPTS).tasks
    needs = {task: len(prompt_tokens(task, tokenizer)) + _TOKENS for task in tasks}
    length = model_length(read_config(files), None, reference, max(needs.values()))
    fitting = [task for task, need in needs.items() if need <= length]
    if not fitting:
        raise ConfigError(
            f"{reference} has {length} positions, and --probe takes {min(needs.values())} at least: give an "
            "--acceptance for it"
        )
    return fitting, length


# --- what the answers tell --------------------------------------------------------------------------------------


def _estimate(answers: Sequence[Answer], plain: Sequence[Answer], k: int) -> Estimate:
    """Survival over all rounds; tau's interval over prompts; the draft's cost where there are plain answers too."""
    from outrider.bench.record import Acceptance
    from outrider.bench.statistics import quotient
    from outrider.plan.acceptance import Estimate, drafting_share

    each = [_acceptance(answer) for answer in answers]
    total = Acceptance.total(each)
    kept = [sum(total.accepted_at[i : i + 1]) / total.rounds for i in range(k)]
    tau = quotient([(of.emitted, of.rounds) for of in each])
    mean = total.emitted / total.rounds
    low, high = ((tau[end] or mean) / mean for end in ("low", "high"))
    source = f"probed, {len(answers)} prompts, {total.rounds} rounds, greedy"
    drafting = drafting_share(total.drafted, total.rounds, k)
    return Estimate(tuple(kept), source, low, high, drafting, _draft_cost(answers, plain) if plain else None)


def _draft_cost(answers: Sequence[Answer], plain: Sequence[Answer]) -> float | None:
    """What a draft token took, over a plain step: the median over prompts, each beside its own plain answer.

    What a plain commit takes is not the drafter's. None where nothing was drafted.
    """
    costs = []
    for answer, alone in zip(answers, plain, strict=True):
        # The round behind a prompt is in neither: it has no draft yet, since the states to draft from come with it.
        steps, drafted, plain_steps = len(answer.arrivals) - 1, _acceptance(answer).drafted, len(alone.arrivals) - 1
        if drafted and steps > 0 and plain_steps > 0:
            work = _phases(answer).drafter - steps * _phases(alone).drafter / plain_steps
            costs.append(max(0.0, work / drafted / (_phases(alone).total / plain_steps)))
    return median(costs) if costs else None


def _phases(answer: Answer) -> PhaseSeconds:
    assert answer.decode_phases is not None, "the engine's own answers tell"
    return answer.decode_phases


def _acceptance(answer: Answer) -> Acceptance:
    assert answer.acceptance is not None, "the engine's own answers tell"
    return answer.acceptance
