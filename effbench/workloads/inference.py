"""The workload of phase=inference: calls of the module.

Outputs, the inputs that a call writes to, and the state that it changes are compared with eager's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from torch import nn

from effbench.core.cell import Status
from effbench.measure import accuracy, timing
from effbench.models.inputs import Inputs, Step
from effbench.workloads import state
from effbench.workloads.base import copies
from effbench.workloads.calls import Calls
from effbench.workloads.endings import Ended
from effbench.workloads.state import StateName


class Inference(Calls):
    """Calls of the module. `references`: eager's results by checked input, in host memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.references: list[accuracy.Parts] = []

    def follow(
        self,
        step: Step,
        module: nn.Module,
        inputs: Sequence[Inputs],
        is_wide: bool = False,
    ) -> Iterator[accuracy.Parts]:
        """Call `step` with copies of all inputs, in order, from the initial state of `module`.
        Yield the outputs and changed inputs of each call, with the changed state after the last
        one. `is_wide`: with floats in float64."""
        state.restore(module, self.initial, self.device)
        for number, given in enumerate(inputs, 1):
            args, kwargs = copies(given)
            if is_wide:
                args, kwargs = accuracy.wide((args, kwargs))
            result = accuracy.parts(step(*args, **kwargs))
            timing.synchronizer(self.device)()
            result |= self.changed_inputs(given, (args, kwargs))
            if number == len(inputs):
                result |= self.changed_state(module)
            yield result

    def changed_state(self, module: nn.Module) -> accuracy.Parts:
        """Return the tensors of the state that the mode must change as eager does."""
        if not self.mode.writes_state:
            return {}
        saved = state.save(module, self.initial)
        return accuracy.tensors({str(name): value for name, value in saved.items()})

    def take_reference(self) -> None:
        """Keep eager's results. Raises Ended if they have no tensor or are not finite."""
        before = state.Watch(self.module)
        first = self.first_call()
        watch = state.Watch(self.module)
        # what calls may change: buffers, attributes, and parameters that the first call has changed
        changed = before.changed(watch.names)
        names = {name for name in watch.names if name.kind != "parameter" or name in changed}
        initial = state.save(self.module, names)

        def start() -> None:
            saved = {name: initial[name] for name in watch.changed(initial.keys())}
            state.restore(self.module, saved, self.device)

        self.choose_grad_mode(first, start)
        written = self.follow_eager(names)
        final = state.save(self.module, names)
        # inductor cannot write to inference tensors, which calls may have left in the state
        state.make_ordinary(self.module)
        self.initial = {
            name: value
            for name, value in initial.items()
            if name in written or not state.same(value, final.get(name))
        }
        for reference in self.references:
            self.refuse_unusable(reference)
        self.references[-1] |= self.changed_state(self.module)
        # a mode may change other attributes, but not the weights or `training`
        kept = {
            name
            for name in watch.names - self.initial.keys()
            if name.kind != "attribute" or name.path.endswith("training")
        }
        self.intact = state.marks(self.module, kept)

    def follow_eager(self, names: set[StateName]) -> set[StateName]:
        """Keep eager's results, and return which of the named state its calls write to."""
        watch = state.Watch(self.module)
        written: set[StateName] = set()
        with self.context():
            for result in self.follow(self.module, self.module, self.inputs.checked):
                self.references.append(state.on_host(result))
                # after each call, because a position may return to where it began
                written |= watch.changed(names)
        return written

    def refuse_unusable(self, reference: accuracy.Parts) -> None:
        """Raise Ended for outputs of eager with which nothing can be compared."""
        if not accuracy.tensors(reference):
            advice = "return tensors, or a tuple, list or dict of them"
            raise Ended(Status.ERROR, f"in check: the output has no tensor to compare; {advice}")
        name = accuracy.not_finite(reference, self.device)
        if name and not self.cell.model.get("allow_nonfinite"):
            how = "choose another dtype, or allow it with model.allow_nonfinite=true"
            raise Ended(Status.INCORRECT, f"eager {name} not finite; {how}")

    def wrong(self) -> str | None:
        """Return how the step's outputs, the inputs that it writes to or the module's state differ
        from eager's."""
        inputs = self.inputs.checked
        exact_results = enumerate(self.follow_in_float64())

        def exact(number: int, given: accuracy.Parts) -> accuracy.Parts:
            # `differs` asks for rising numbers: each input runs once, after all before it
            return given | next(result for index, result in exact_results if index == number)

        # one result at a time, on the device: those of a large vocabulary take gigabytes
        results = zip(self.follow(self.step, self.ran, inputs), self.references, strict=True)
        for number, (result, eager) in enumerate(results):
            given = self.input_tensors(inputs[number])
            wanted = {**given, **eager}
            for name in given:
                if name in result:
                    self.written.add(name)
                    continue
                del wanted[name]
                if name in eager:
                    self.degraded = (
                        f"the module writes to its {name}, but this mode leaves the caller's tensor"
                        " unchanged"
                    )
            reason = self.differs(result, wanted, partial(exact, number, given))
            if reason is not None:
                self.refuse_own_state()
                return reason
        return None

    def follow_in_float64(self) -> Iterator[accuracy.Parts]:
        """Yield the results of a copy of the module in float64, which is made if one is wanted."""
        module = self.in_float64()
        yield from self.follow(
            module,
            module,
            self.inputs.checked,
            is_wide=True,
        )

    def refuse_own_state(self) -> None:
        """Raise Ended if the mode has its own copy of a buffer that eager's outputs depend on.
        Earlier calls have changed the copy, which cannot be restored."""
        copied = [name for name in self.initial if name.kind != "attribute"]
        if self.mode.writes_state or not copied:
            return
        given = self.inputs.checked[0]
        first, second = self.follow(self.module, self.module, [given, given])
        if self.comparison.compare(second, first).reason:
            what = f"the {copied[0]}, which each call changes and effbench cannot restore there"
            raise Ended(
                Status.UNSUPPORTED,
                f"this mode has a copy of {what}: outputs cannot be compared with eager's",
            )

    def unpaired(self) -> str | None:
        for name in self.initial:
            # compiled code may depend on a plain value: a change by the other side recompiles it
            if name.kind == "attribute":
                return f"each call changes the module's {name}"
        return None
