"""What can go wrong: command lines that fail, with exit code and what stderr must say.

One table a noun of cli.md. `fill` makes the files that the command lines speak of. A row is
(words after `hip`, exit code, what the line on stderr must contain).
"""

from pathlib import Path

from tests.hipcli.documents.pdfs import draw, encrypt, scan, text

Row = tuple[str, int, str]

NOWHERE = "/nonexistent/file"

PROGRAM: list[Row] = [
    ("", 2, "no command given"),
    ("aks", 2, "No such command 'aks'. Did you mean 'ask'?"),
    ("book.txt Who?", 2, "try hip ask book.txt"),
    ("--bogus", 2, "--bogus"),
    ("--verison", 2, "no such option --verison (did you mean --version?"),
    ("methods extra", 2, "extra"),
    ("methods --bogus", 2, "--bogus"),
    ("config", 2, "no command given"),
    ("config path extra", 2, "extra"),
    ("config shw", 2, "Did you mean 'show'?"),
    (f"config show --config {NOWHERE}", 2, "configuration file"),
    ("config show --config unknown.toml", 2, "did you mean 'max_new_tokens'?"),
    ("bench", 2, "no command given"),
    ("bench kernel", 2, "Did you mean 'kernels'?"),
    ("bench engine --device tpu", 2, "cpu or cuda"),
    ("doctor --bogus", 2, "--bogus"),
    ("doctor extra", 2, "extra"),
]

# What is wrong with the words: nothing has been read yet.
WORDS: list[Row] = [
    ("ask", 2, "no question given"),
    ("ask -", 2, "standard input is a terminal"),
    ("ask - Who?", 2, "standard input is a terminal"),
    ("ask Who?", 2, "no SOURCE given"),
    ("ask book.txt", 2, "the question is missing"),
    ("ask book.txt ''", 2, "the question is empty"),
    ("ask book.txt ' '", 2, "the question is empty"),
    ("ask book.txt -Why?", 2, "no such option: -Why? (what begins with a dash"),
    ("ask -dash.txt Who?", 2, "a file of that name is written ./-dash.txt"),
    ("ask book.txt who wrote it?", 3, 'hip ask book.txt "who wrote it?"'),
    ("ask book.txt 'Who wrote it?' --batch questions.jsonl", 2, "come from --batch"),
    ("ask book.txt Who? -0", 2, "add --files-from"),
    (f"ask book.txt Who? --password-file {NOWHERE}", 2, "password file"),
    (f"ask book.txt Who? -o {NOWHERE}", 2, "check the path given to -o"),
    ("ask book.txt Who? -o .", 2, "Is a directory"),
    ("ask book.txt -Q", 2, "try: hip ask --help"),
    (f"ask book.txt -Q {NOWHERE}", 2, "question file"),
    ("ask book.txt -Q .", 2, "Is a directory"),
    ("ask book.txt -Q empty.txt", 2, "the question is empty"),
    ("ask book.txt -Q latin.txt", 2, "not UTF-8"),
    ("ask book.txt -Q -", 2, "standard input is a terminal"),
    ("ask - -Q -", 2, "both want standard input"),
    ("ask --files-from - -Q -", 2, "both want standard input"),
    ("ask - --files-from - Who?", 2, "both want standard input"),
    ("ask --files-from - Who?", 2, "standard input is a terminal"),
    (f"ask --files-from {NOWHERE} Who?", 2, "--files-from"),
    ("ask --files-from empty.txt Who?", 3, "is empty"),
    ("ask book.txt --batch", 2, "--batch"),
    (f"ask book.txt --batch {NOWHERE}", 2, "--batch"),
    ("ask book.txt --batch empty.txt", 3, "no questions"),
    ("ask book.txt --batch book.txt", 2, "not JSON"),
    ("ask book.txt --batch -", 2, "standard input is a terminal"),
    ("ask --batch questions.jsonl", 2, "no SOURCE given"),
    ("ask book.txt --batch questions.jsonl -Q question.txt", 2, "exclude one another"),
    ("ask book.txt --batch questions.jsonl --continue", 2, "exclude one another"),
    ("ask book.txt Who? --continue --no-cache", 2, "exclude one another"),
    ("ask book.txt Who? --resume abc", 2, "--resume reads nothing anew"),
    ("ask --resume abc Who? --no-cache", 2, "exclude one another"),
    ("ask --resume", 2, "no question given"),
    ("ask -c", 2, "no question given"),
    ("summarize", 2, "no SOURCE given"),
    ("summarize -", 2, "standard input is a terminal"),
    ("summarize book.txt --per page", 2, "file, chapter, none"),
    ("summarize book.txt --words few", 2, "--words"),
    ("summarize book.txt --words 3", 2, "--words"),
    ("summarize book.txt --cite", 2, "--cite"),
    ("summarize book.txt --per", 2, "--per needs a value"),
    ("summarize book.txt --words -3", 2, "--words: -3 is too small, the least is 10"),
    ("ask book.txt Who? --open-evidence -", 2, "--open-evidence is a file for one answer"),
    ("ask book.txt --batch questions.jsonl --open-evidence a.html", 2, "--open-evidence"),
    (f"ask book.txt Who? --open-evidence {NOWHERE}", 2, "given to --open-evidence"),
    ("summarize book.txt --focus", 2, "--focus"),
    ("summarize --resume abc book.txt", 2, "reads nothing anew"),
    ("summarize --resume --no-cache", 2, "exclude one another"),
    (f"summarize book.txt -o {NOWHERE}", 2, "check the path given to -o"),
    ("chat -", 2, "where the questions come from"),
    ("chat --files-from -", 2, "where the questions come from"),
    ("chat book.txt --resume=abc", 2, "reads nothing anew"),
    ("chat --resume --no-cache", 2, "exclude one another"),
    ("inspect", 2, "no SOURCE given"),
    ("inspect -", 2, "standard input is a terminal"),
    ("inspect book.txt --count letters", 2, "letters"),
    (f"inspect book.txt --count words -o {NOWHERE}", 2, "check the path given to -o"),
    ("inspect book.txt -0", 2, "add --files-from"),
    ("inspect -dash.txt", 2, "a file of that name is written ./-dash.txt"),
]

# Options of `hip ask book.txt Who?`, which are those of `summarize` and `chat` too.
OPTIONS: list[Row] = [
    (f"ask book.txt Who? {options}", code, part)
    for options, code, part in [
        ("--bogus", 2, "--bogus"),
        ("--methd hip", 2, "did you mean --method?"),
        ("--max-tokens 9", 2, "did you mean --max-new-tokens?"),
        ("--model", 2, "--model needs a value"),
        ("--model ''", 2, "--model is empty"),
        ("--model nosuch", 1, "nosuch"),
        ("--model smolm2", 1, "Did you mean 'smollm2'?"),
        ("--model org/nosuch", 1, "org/nosuch"),
        ("--model ./nosuch", 1, "nosuch"),
        ("--device gpu", 2, "auto, cpu, cuda or cuda:N"),
        ("--device cuda:x", 2, "auto, cpu, cuda or cuda:N"),
        ("--dtype float8", 2, "auto, bfloat16, float32"),
        ("--kv-dtype fp8", 2, "auto, fp8_e4m3"),
        ("--kv-dtype fp8_e4m3 --device cpu", 2, "needs a GPU, and --device cpu was given"),
        ("--weights int4", 2, "auto, int8"),
        ("--weights int8 --device cuda", 2, "--weights int8 is for processors"),
        ("--threads 0", 2, "--threads: 0 is too small, the least is 1"),
        ("--gpu-memory much", 2, "--gpu-memory: 'much' is not a size"),
        ("--host-memory 0", 2, "--host-memory 0 leaves no room"),
        ("--cite=yes", 2, "--cite takes no value"),
        ("--context-limit 0", 2, "--context-limit: 0 is too small, the least is 1"),
        ("--context-limit none", 2, "--context-limit"),
        ("--fit both", 2, "error, head, tail, middle"),
        ("--method hpi", 2, "did you mean 'hip'?"),
        ("--method dense --budget-tokens 64", 2, "no setting budget_tokens"),
        ("--budget-tokens -1", 2, "--budget-tokens"),
        ("--window-tokens 0", 2, "--window-tokens"),
        ("--sink-tokens few", 2, "--sink-tokens"),
        ("--answer maybe", 2, "auto, attend, share, reread"),
        ("--system", 2, "--system"),
        ("--max-new-tokens", 2, "--max-new-tokens"),
        ("--max-new-tokens many", 2, "--max-new-tokens: 'many' is not a whole number"),
        ("--max-new-tokens -3", 2, "--max-new-tokens: -3 is too small, the least is 1"),
        ("--max-new-tokens 1.5", 2, "'1.5' is not a whole number"),
        ("--max-new-tokens 99999999", 2, "from 1 to 1048576"),
        ("--budget-tokens 9999999999999999999999", 2, "too large"),
        ("--temperature warm", 2, "--temperature: 'warm' is not a number"),
        ("--temperature -1", 2, "--temperature: -1 is too small"),
        ("--temperature nan", 2, "temperature"),
        ("--temperature inf", 2, "temperature"),
        ("--seed one", 2, "--seed"),
        ("--max-file-size much", 2, "--max-file-size: 'much' is not a size"),
        ("--max-files 0", 2, "--max-files: 0 is too small"),
        ("--encoding utf-88", 2, "utf-88"),
        ("--cache-max-size much", 2, "'much' is not a size"),
        ("--no-cache --refresh", 2, "exclude one another"),
        ("--no-cache --cached-only", 2, "exclude one another"),
        ("--no-cache --name letters", 2, "exclude one another"),
        ("--refresh --cached-only", 2, "exclude one another"),
        ("--refresh --stale-ok", 2, "exclude one another"),
        ("--progress of", 2, "did you mean 'off'?"),
        ("-o", 2, "-o"),
        (f"--config {NOWHERE}", 2, "configuration file"),
        ("--config unknown.toml", 2, "did you mean 'max_new_tokens'?"),
        ("--config broken.toml", 2, "not valid TOML"),
        ("--config wrong.toml", 2, "it must be a whole number"),
    ]
]

# Documents that cannot be used.
INPUTS: list[Row] = [
    (f"ask {NOWHERE} Who?", 3, NOWHERE),
    (f"ask book.txt {NOWHERE} Who?", 3, NOWHERE),
    ("ask --files-from list.txt Who?", 3, "gone.txt"),
    ("ask empty.txt Who?", 3, "empty"),
    ("ask blank.txt Who?", 3, "blank.txt"),
    ("ask data.bin Who?", 3, "data.bin"),
    ("ask pointer.txt Who?", 3, "LFS"),
    ("ask page.pdf Who?", 3, "HTML"),
    ("ask report.docx Who?", 3, "report.docx"),
    ("ask nothing Who?", 3, "nothing"),
    ("ask texts Who? --include '*.rs'", 3, "none of 2 files matches --include"),
    ("ask binaries Who?", 3, "binaries"),
    ("ask --files-from folders.txt Who?", 3, "nothing"),
    ("ask book.txt Who? --cached-only", 5, "no saved session is about these documents"),
    ("ask latin.txt Who? --strict --encoding ascii", 3, "was given: latin.txt: 3"),
    (f"summarize {NOWHERE}", 3, NOWHERE),
    ("summarize empty.txt", 3, "empty"),
    (f"chat {NOWHERE}", 3, NOWHERE),
    (f"inspect {NOWHERE} --count words", 3, NOWHERE),
    ("inspect book.txt --count words extra", 3, "extra"),
    ("inspect book.txt", 1, "--count words"),
]

# PDFs are read in a process of their own, which takes its time.
PDFS: list[Row] = [
    ("ask locked.pdf Who?", 3, "--password-file"),
    ("ask locked.pdf Who? --password-file question.txt", 3, "password"),
    ("ask scan.pdf Who?", 3, "OCR"),
    ("ask torn.pdf Who?", 3, "torn.pdf"),
    ("ask partial.pdf Who? --strict", 3, "partial.pdf"),
]

# Sessions and models that are not there.
STORED: list[Row] = [
    ("ask --resume abc Who?", 1, "session"),
    ("ask -c Who?", 1, "no saved sessions"),
    ("summarize --resume abc", 1, "session"),
    ("summarize -c", 1, "no saved sessions"),
    ("chat --resume abc", 1, "session"),
    ("sessions", 2, "no command given"),
    ("sessions lst", 2, "Did you mean 'list'?"),
    ("sessions list extra", 2, "extra"),
    ("sessions show", 1, "no saved sessions"),
    ("sessions show abc", 1, "session"),
    ("sessions show ../../etc", 1, "session"),
    ("sessions rm", 2, "no session named"),
    ("sessions rm abc", 1, "session"),
    ("sessions prune --max-size much", 2, "--max-size: 'much' is not a size"),
    ("sessions prune --max-size -1", 2, "'-1' is not a size"),
    ("sessions fork", 1, "no saved sessions"),
    ("sessions fork abc", 1, "session"),
    ("sessions verify abc", 1, "session"),
    ("sessions path abc", 1, "session"),
    ("models", 2, "no command given"),
    ("models lst", 2, "Did you mean 'list'?"),
    ("models show nosuch", 1, "nosuch"),
    ("models pull", 2, "no model named"),
    ("models pull nosuch", 1, "nosuch"),
    ("models pull ./nosuch", 1, "nosuch"),
    ("models rm", 2, "no model named"),
    ("models rm nosuch", 1, "nosuch"),
    ("models path nosuch", 1, "nosuch"),
]

EVALUATION: list[Row] = [
    ("eval extra", 2, "extra"),
    ("eval --tasks nosuch", 2, "nosuch"),
    ("eval --tasks ,", 2, "--tasks names nothing"),
    ("eval --haystacks nosuch", 2, "nosuch"),
    ("eval --haystacks files", 2, "--haystack-files"),
    ("eval --lengths long", 2, "'long' is no length"),
    ("eval --depths deep", 2, "'deep' is no number"),
    ("eval --depths 2", 2, "between 0 and 1"),
    ("eval --samples 0", 2, "--samples"),
    ("eval --limit-s soon", 2, "--limit-s"),
    ("eval --method nosuch", 2, "nosuch"),
    ("eval --answer nosuch", 2, "nosuch"),
    (f"eval --html {NOWHERE}", 2, "--html"),
    (f"eval --haystack-files {NOWHERE}", 3, NOWHERE),
    (f"eval --fidelity {NOWHERE}", 3, NOWHERE),
    ("eval --device gpu", 2, "auto, cpu, cuda or cuda:N"),
    ("eval --model nosuch", 1, "nosuch"),
]

ALL = [*PROGRAM, *WORDS, *OPTIONS, *INPUTS, *STORED, *EVALUATION]


def fill(folder: Path) -> None:
    """Makes the files that the command lines speak of."""
    pdf = draw(text("A letter from Ada."))
    contents = {
        "book.txt": b"A letter from Ada.\n",
        "question.txt": b"Who?\n",
        "questions.jsonl": b'"Who?"\n',
        "list.txt": b"gone.txt\n",
        "folders.txt": b"nothing\n",
        "empty.txt": b"",
        "blank.txt": b" \n\t\n",
        "latin.txt": "Fran\u00e7ois \u00e0 la f\u00eate\n".encode("latin-1"),
        "data.bin": bytes(range(256)) * 8,
        "pointer.txt": b"version https://git-lfs.github.com/spec/v1\n"
        b"oid sha256:" + b"0" * 64 + b"\nsize 12345\n",
        "page.pdf": b"<!DOCTYPE html><html><body>Please log in.</body></html>\n",
        "report.docx": b"PK\x03\x04" + bytes(64),
        "unknown.toml": b"max-new-tokens = 3",
        "broken.toml": b"max_new_tokens =",
        "wrong.toml": b"max_new_tokens = true",
        "torn.pdf": pdf[: len(pdf) // 3],
        "locked.pdf": encrypt(pdf, "AES-256", "secret", "owner"),
        "scan.pdf": draw(scan()),
        "partial.pdf": draw(text("A letter from Ada."), scan()),
        "binaries/data.bin": bytes(range(256)) * 8,
        "-dash.txt": b"A letter from Ada.\n",
        "texts/a.txt": b"A letter from Ada.\n",
        "texts/.hidden.txt": b"Another one.\n",
    }
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (folder / "nothing").mkdir()
