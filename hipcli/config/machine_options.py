"""The options of the machine a model runs on, and of several machines or GPUs."""

from hipcli.config.option import Option, default_of
from hipcli.engine.config import KV_DTYPES, WEIGHT_FORMS, EngineConfig

MACHINE = (
    Option(
        "device",
        str,
        default_of(EngineConfig, "device"),
        "auto, cpu, cuda or cuda:N.",
        metavar="DEVICE",
    ),
    Option(
        "dtype",
        str,
        default_of(EngineConfig, "dtype"),
        "Number format of weights and activations.",
        choices=("auto", "bfloat16", "float32"),
    ),
    Option(
        "kv_dtype",
        str,
        default_of(EngineConfig, "kv_dtype"),
        "Number format of stored keys and values; fp8_e4m3 (on a GPU) and int8 (on a processor) "
        "halve their memory.",
        choices=KV_DTYPES,
    ),
    Option(
        "weights",
        str,
        default_of(EngineConfig, "weights"),
        "Weights in memory as --dtype says, or in 8 bits: faster answers on a processor, and a "
        "little different ones.",
        choices=WEIGHT_FORMS,
    ),
    Option(
        "threads",
        int,
        None,
        "Threads that compute on the processor, no more than it can run at once; without it one "
        "for each core, or as many as a container may use.",
        minimum=1,
        metavar="N",
    ),
    Option(
        "calibrated",
        bool,
        default_of(EngineConfig, "calibrated"),
        "Let heads vote as `hip models calibrate` weighed them, or all alike; smollm2 comes with "
        "a calibration, without one all vote alike.",
        ("--calibrated/--no-calibrated",),
    ),
    Option(
        "gpu_memory",
        str,
        None,
        "Most GPU memory for weights, keys and values, as in 24GiB (default: what is free). Keys"
        " and values beyond it stay in main memory; weights and some of them must fit.",
        metavar="SIZE",
    ),
    Option(
        "host_memory",
        str,
        None,
        "Most main memory to take where the model runs on the processor, as in 2GiB (default: what"
        " is free); on a GPU, for keys and values it does not hold. Those beyond it stay on disk;"
        " weights and hip itself must fit.",
        metavar="SIZE",
    ),
    Option(
        "context_limit",
        int,
        None,
        "Refuse (or cut, see --fit) more tokens than this.",
        minimum=1,
        metavar="N",
    ),
    Option(
        "fit",
        str,
        "error",
        "What to do with more tokens than fit: stop, or keep the head, the tail, or both ends "
        "(middle leaves out the middle).",
        choices=("error", "head", "tail", "middle"),
    ),
)

RANKS = (
    Option(
        "gpus",
        int,
        1,
        "Spread a context over so many GPUs of this machine; with --device cpu over so many "
        "processes.",
        minimum=1,
        metavar="N",
    ),
    Option(
        "placement",
        str,
        "interleaved",
        "Which pages of a context lie on which of several GPUs: in turn, or in equal runs.",
        choices=("interleaved", "contiguous"),
    ),
    Option(
        "rank_timeout",
        int,
        30,
        "Give up when one of several GPUs was not heard of for so long.",
        minimum=3,
        metavar="SECONDS",
    ),
)
