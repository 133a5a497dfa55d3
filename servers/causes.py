"""Why a server died, read from the end of its log: one row a known cause, the likeliest first."""

import re

_KNOWN = [
    (
        r"No module named '?vllm|No module named '?servers",
        "That Python has no such engine. Name the right one with --set python=PATH or LOADGATE_VLLM_PYTHON.",
    ),
    (
        r"torchvision::nms does not exist|Could not import module '\w+For",
        "torchvision, torchaudio and torchcodec there do not match its torch: pip uninstall them in that environment.",
    ),
    (
        r"unrecognized arguments: (?P<what>.+)|No such option:? (?P<other>\S+)",
        "It does not know the flag {what}. Check --set extra=… against this release of the engine.",
    ),
    (
        r"[Aa]ddress already in use",
        "Its port was taken by another program meanwhile. Choose another with --port.",
    ),
    (
        r"[Oo]ut of memory|OutOfMemoryError|MemoryError|can't allocate memory|Cannot allocate memory",
        "It ran out of memory. Lower the KV cache's share, max_model_len or max_num_seqs, or end what else runs there.",
    ),
    (
        r"No available memory for the cache blocks|larger than the (?:available (?:KV cache )?memory|maximum number of"
        r" tokens)|less than desired GPU memory utilization",
        "Its memory is too small for the KV cache. Give it more (gpu_memory_utilization, on the CPU kv_cache_gib), "
        "or lower max_model_len.",
    ),
    (
        r"Repository Not Found|RepositoryNotFoundError|is not a local folder|HFValidationError|LocalEntryNotFoundError"
        r"|OfflineModeIsEnabled|Invalid repository ID or local directory|couldn't connect to '",
        "The model was not found: check its name or folder (model, draft), and whether the hub can be reached.",
    ),
    (
        r"invalid choice: (?P<what>.+)|error: argument (?P<other>.+)|ValidationError",
        "It refused one of its settings; its last lines say which.",
    ),
]


def cause_of(log: str, exit_code: int) -> str | None:
    """A sentence on what happened and what to do; None where the log shows nothing known.

    exit_code: negative for a signal, as in subprocess.
    """
    for pattern, sentence in _KNOWN:
        if found := re.search(pattern, log):
            return sentence.format(what=next((text for text in found.groups() if text), ""))
    if exit_code == -9:
        return "Something killed it: most often the system, for want of memory."
    return None
