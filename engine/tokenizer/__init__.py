"""Text to token ids and back: literal encoding, the chat scaffold, streaming decoding.

Why a package of our own over the `tokenizers` library: a document must never turn into a turn of
the conversation, decoding must give the text back to the byte, and ten megabytes on one line must
not take longer than ten megabytes of prose. Loading one imports neither torch nor transformers.

    tokenizer = load_tokenizer(Path("model-folder"))
    encoded = tokenizer.encode("some text")     # ids [N], character offsets [N, 2]
    tokenizer.decode(encoded.ids)               # "some text"
"""

from hipcli.engine.tokenizer.chat import Scaffold
from hipcli.engine.tokenizer.stream import Stream
from hipcli.engine.tokenizer.tokenizer import Encoded, Tokenizer, load_tokenizer

__all__ = ["Encoded", "Scaffold", "Stream", "Tokenizer", "load_tokenizer"]
