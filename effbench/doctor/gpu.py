"""A GPU's own state: clocks, what slows it down, power, temperature, ECC, PCIe, persistence."""

from __future__ import annotations

from collections.abc import Iterator

from effbench.doctor.finding import Finding, counted, good, note, warning
from effbench.doctor.nvml import Device

SM, MEMORY = 1, 2  # nvmlClockType_t
UNCORRECTED, SINCE_DRIVER, SINCE_EVER = 1, 0, 1  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
SLOWDOWN_THRESHOLD = 1  # nvmlTemperatureThresholds_t
HOT_C = 85  # where the driver names no threshold
MARGIN_C = 8

IDLE, SETTING, POWER_CAP, HARDWARE, SYNC_BOOST = 0x01, 0x02, 0x04, 0x08, 0x10
SOFTWARE_THERMAL, HARDWARE_THERMAL, POWER_BRAKE, DISPLAY = 0x20, 0x40, 0x80, 0x100
SLOWER = "GPU-bound cells are slower than they should be; trials that meet it are measured again, then noisy"
COOL = "let it cool; look at the airflow and at the neighbours' load"
#: What slows the GPU down beyond its settings: bit -> (what, how to mend it).
SLOWDOWNS = {
    SOFTWARE_THERMAL: ("thermal slowdown (by the driver)", COOL),
    HARDWARE_THERMAL: ("thermal slowdown (by the hardware)", COOL),
    POWER_BRAKE: ("power brake: the supply asks for less", "an administrator: the machine's power supply and limits"),
}


def findings(device: Device) -> Iterator[Finding]:
    for look in (clocks, slowdowns, power, temperature, ecc, pcie, persistence):
        for found in look(device):
            yield Finding(found.level, f"{device.name}: {found.what}", found.effect, found.mend)


def clocks(device: Device) -> Iterator[Finding]:
    now = [device.ask("nvmlDeviceGetClockInfo", kind) for kind in (SM, MEMORY)]
    most = [device.ask("nvmlDeviceGetMaxClockInfo", kind) for kind in (SM, MEMORY)]
    if now == [None, None]:
        yield note("its clocks cannot be read", "a cell measured at a low clock is not recognised")
        return
    bits = device.clocks_events()
    parts = [
        f"{name} clock {clock}{f' of {top}' if top else ''} MHz"
        for name, clock, top in zip(("SM", "memory"), now, most, strict=True)
        if clock is not None
    ]
    yield note(", ".join(parts) + (" (idle)" if bits is not None and bits & IDLE else ""))
    setting, top = device.ask("nvmlDeviceGetApplicationsClock", SM), most[0]
    if setting and top and setting < top:
        yield note(
            f"application clock {setting} of {top} MHz: the SM clock is held below its maximum",
            "steadier figures, slower than this GPU can be; they compare with others at this clock",
            "to undo it, an administrator: nvidia-smi -rac",
        )
    elif bits is not None and bits & SETTING:
        yield note(
            "its clocks are held by a setting (application or locked clocks)",
            "steadier figures, slower than this GPU can be; they compare with others at this clock",
            "to undo it, an administrator: nvidia-smi -rac; nvidia-smi -rgc",
        )
    else:
        yield note(
            "its clocks are not locked, as far as NVML tells",
            "they follow load, power and temperature, and GPU-bound cells follow them",
            "for steadier, slower figures an administrator: nvidia-smi -lgc MHZ, a clock that it holds under full load",
        )


def slowdowns(device: Device) -> Iterator[Finding]:
    bits = device.clocks_events()
    if bits is None:
        yield note("the driver does not say why clocks change", "a trial that was slowed down is not recognised")
        return
    found = [SLOWDOWNS[bit] for bit in SLOWDOWNS if bits & bit]
    if bits & HARDWARE and not bits & (HARDWARE_THERMAL | POWER_BRAKE):  # it is the sum of those two
        found.append(("hardware slowdown", COOL))
    for what, mend in found:
        yield warning(f"{what} now", SLOWER, mend)
    if bits & POWER_CAP:
        yield note(
            "its clocks are held by the power cap now (software power cap)",
            "usual under full load; recorded with each trial, which counts",
            "other work on it must end, if there is any",
        )
    if bits & SYNC_BOOST:
        yield warning(
            "its clocks are tied to another GPU's (sync boost)",
            "it slows down with the slowest of its group",
            "an administrator: take it out of the group (nvidia-smi boost-slider, DCGM)",
        )
    if bits & DISPLAY:
        yield warning("its clocks are held by a display", SLOWER, "measure on a GPU without a display")
    if not found:
        yield good("no thermal slowdown and no power brake now")


def power(device: Device) -> Iterator[Finding]:
    limit = device.ask("nvmlDeviceGetEnforcedPowerLimit") or device.ask("nvmlDeviceGetPowerManagementLimit")
    default = device.ask("nvmlDeviceGetPowerManagementDefaultLimit")  # both in mW
    if not limit or not default:
        yield note("its power limit cannot be read", "whether it is capped below its kind is unknown")
    elif limit < default:
        yield warning(
            f"power limit {limit / 1000:.0f} W, below the default {default / 1000:.0f} W",
            "GPU-bound cells run slower than this GPU can",
            f"an administrator: nvidia-smi -pl {default // 1000}",
        )
    elif limit > default:
        yield note(
            f"power limit {limit / 1000:.0f} W, above the default {default / 1000:.0f} W",
            "GPU-bound cells run faster than on others of its kind",
        )
    else:
        yield good(f"power limit {limit / 1000:.0f} W, the default")


def temperature(device: Device) -> Iterator[Finding]:
    now = device.ask("nvmlDeviceGetTemperature", 0)
    if now is None:
        return
    threshold = device.ask("nvmlDeviceGetTemperatureThreshold", SLOWDOWN_THRESHOLD)
    limit = threshold - MARGIN_C if threshold else HOT_C
    beside = f" (slows down at {threshold} °C)" if threshold else ""
    if now >= limit:
        yield warning(f"{now} °C{beside}", "under load it soon slows down", COOL)
    else:
        yield good(f"{now} °C{beside}")


def ecc(device: Device) -> Iterator[Finding]:
    mode = device.ask("nvmlDeviceGetEccMode")
    if mode is None:
        return
    current, pending = mode
    word = "on" if current else "off"
    effect = (
        "costs bandwidth on GPUs with GDDR memory, none with HBM" if current else "compare with others without ECC only"
    )
    yield note(f"ECC is {word}", effect)
    if pending != current:
        yield note(f"ECC will be {'on' if pending else 'off'} after the next reset", "figures may differ from then on")
    if not current:
        return
    errors = {span: device.ask("nvmlDeviceGetTotalEccErrors", UNCORRECTED, span) for span in (SINCE_DRIVER, SINCE_EVER)}
    if errors[SINCE_DRIVER]:
        yield warning(
            f"{counted(errors[SINCE_DRIVER], 'uncorrected memory error')} since the driver was loaded",
            "outputs may be wrong, and trials may end with CUDA errors",
            "an administrator: reset the GPU; replace it if they come back",
        )
    elif errors[SINCE_EVER]:
        yield note(
            f"{counted(errors[SINCE_EVER], 'uncorrected memory error')} in its life, none since the driver loaded"
        )
    remapped = device.ask("nvmlDeviceGetRemappedRows")
    if remapped and (remapped[2] or remapped[3]):
        yield warning(
            "memory rows wait for remapping" if remapped[2] else "memory rows could not be remapped",
            "trials may end with CUDA errors",
            "an administrator: reset the GPU" if remapped[2] else "replace the GPU",
        )


def pcie(device: Device) -> Iterator[Finding]:
    generation, width = (device.ask(f"nvmlDeviceGetCurrPcieLink{what}") for what in ("Generation", "Width"))
    # of this GPU in this slot; the GPU's own maximum may be more than the slot can
    most, widest = (device.ask(f"nvmlDeviceGetMaxPcieLink{what}") for what in ("Generation", "Width"))
    if not generation or not width:
        return
    what = f"PCIe generation {generation}, {width} lanes"
    slower = "copies between host and GPU are slower than they can be"
    if widest and width < widest:
        yield warning(f"{what} of {widest}", slower, "an administrator: the slot, the riser, the card's seat")
    elif most and generation < most:
        bits = device.clocks_events()
        if bits is None or bits & IDLE:
            yield note(f"{what}; generation {most} is possible", "many GPUs lower it while idle, and raise it for work")
        else:
            yield warning(f"{what}; generation {most} is possible", slower, "an administrator: the slot's settings")
    else:
        yield good(what)


def persistence(device: Device) -> Iterator[Finding]:
    mode = device.ask("nvmlDeviceGetPersistenceMode")
    if mode == 0:
        yield note(
            "persistence mode is off",
            "the driver starts anew in each trial's process (a second or more), and forgets clock settings",
            "an administrator: nvidia-smi -pm 1",
        )
    elif mode is not None:
        yield good("persistence mode is on")
