"""A rank other than 0, from meeting the others to its end."""

from hipcli.engine.config import EngineConfig
from hipcli.engine.distributed.control import Address, RankLostError
from hipcli.engine.distributed.joining import check_config, device_of, found_store, join
from hipcli.engine.distributed.serving import serve
from hipcli.engine.loaded import LoadedEngine
from hipcli.engine.models import resolve
from hipcli.engine.tokenizer import load_tokenizer


def work(config: EngineConfig, address: Address) -> None:
    """Meet the other ranks and do what rank 0 says until it says no more.

    Args:
        config: which model runs how; the same as rank 0's but for where models lie.
        address: where the ranks meet.

    Raises:
        RankLostError: another rank is gone.
        HipError: this rank cannot go on; it has left word of why.
    """
    check_config(config)
    config = device_of(config, address)
    folder = resolve(config.model, models_dir=config.models_dir)
    tokenizer = load_tokenizer(folder.path)
    address = found_store(address)
    member, _ = join(address, lambda: LoadedEngine.load(config, folder, tokenizer))
    try:
        serve(member.shard, member.commands)
    except RankLostError:
        member.leave()
        raise
    except BaseException as error:
        member.leave(f"{type(error).__name__}: {str(error)[:300]}")
        raise
    member.leave()
