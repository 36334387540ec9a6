"""Training prompts of the kinds Spec-Bench measures, made from other text: python benchmarks/draft_prompts.py --help.

Summaries, questions, questions about a passage and translations out of German come from instruction data and German
text; essays, advice, explanations and small programs from the topics and forms below; code from the signatures of
Python's own library. No benchmark prompt is read. Output: JSON Lines of {"kind": ..., "prompt": ...}.
"""

from __future__ import annotations

import argparse
import ast
import html
import json
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

TOPICS = """
the water cycle; a road trip through Scotland; public libraries; solar panels on old houses; the French Revolution;
learning to play the piano; urban gardening; the theory of evolution; artificial intelligence in hospitals; working
from home; a small bakery that opens at night; black holes; the stock market; coral reefs; climate change; a lost dog;
time management; vaccines; the history of chess; railways in India; a lighthouse keeper; inflation; good sleep;
electric cars; volcanoes; the printing press; healthy breakfasts; space travel; a first day at school; democracy; bees
and pollination; the Roman Empire; online privacy; teaching mathematics to children; a mountain village in winter;
plate tectonics; recycling plastic; jazz music; job interviews; the human heart; a detective in Venice; renewable
energy; the Silk Road; photosynthesis in deserts; gravity; social media and teenagers; a robot that paints; saving
money; antibiotics; the Great Wall of China; running a marathon; supply and demand; DNA; a farewell to an old friend;
migration of birds; cloud computing; the moon landing; neural networks; the Industrial Revolution; wine making; a
kingdom under the sea; earthquakes; the periodic table; remote villages and schools; the immune system; a chess game
between rivals; international trade; bridges; the ethics of cloning; the weather on Mars; quantum computers; a family
dinner; minimum wages; deep sea animals; the invention of the telephone; meditation; tides; batteries; a museum at
midnight; the Renaissance; nutrition for athletes; city traffic; the greenhouse effect; film photography
"""

FORMS = """
Write a short story about {}.|Write a poem about {}.|Compose an email to a colleague about {}.
Draft a blog post about {} with a catchy opening.|Describe {} in vivid detail, in one paragraph.
Explain {} to a ten year old.|What are the main ideas behind {}?|What are the advantages and disadvantages of {}?
Give me five tips about {}.|Write a speech about {} for a small audience.
Imagine you are a teacher. How would you introduce {} to your class?
Act as a journalist and interview an expert about {}.|You are a travel guide. Tell me about {}.
Discuss the importance of {} for society.|Outline an essay on {}.|How has {} changed over the last hundred years?
Write a product review related to {}.|Write a dialogue between two friends about {}.
List the most common misunderstandings about {}.|Summarize what is known about {}.
Pretend to be a philosopher and share your thoughts on {}.|What questions should I ask to learn more about {}?
Compare {} with something similar and describe the differences.|Write a plan of four weeks to learn about {}.
Write a persuasive letter about {} to the city council.|Explain step by step how one could research {}.
Create a quiz with four questions about {}.|Give an example from daily life that illustrates {}.
Write a news report about {}.
"""

PROGRAMS = """
reverses the words of a sentence; checks whether a number is prime; merges two sorted lists; counts the vowels of a
string; finds the longest common prefix of some words; computes the nth Fibonacci number; sorts a list of people by
age; reads a CSV file and sums a column; removes duplicates from a list; converts Celsius to Fahrenheit; validates an
email address; flips a binary tree; implements a stack; implements a queue with two stacks; finds the second largest
number; computes the greatest common divisor; prints a multiplication table; searches a sorted list; simulates rolling
two dice; encrypts a text with a Caesar cipher; parses a date; counts the words of a file; checks for balanced
brackets; computes the median; draws a triangle of stars; fetches a web page; transposes a matrix; groups anagrams;
finds all permutations of a string; schedules tasks by priority
"""

LANGUAGES = ("Python", "C++", "JavaScript", "Java", "Go", "SQL")

_QUESTION = re.compile(r"\b(?:who|what|when|where|which|why|how)\b[^.?!\n]{8,90}\?", re.IGNORECASE)


def items(text: str) -> list[str]:
    return [" ".join(item.split()) for item in text.split(";")]


def essays(rng: random.Random) -> Iterator[str]:
    pairs = [form.format(topic) for form in FORMS.replace("\n", "|").strip("|").split("|") for topic in items(TOPICS)]
    rng.shuffle(pairs)
    yield from pairs


def programs(rng: random.Random) -> Iterator[str]:
    pairs = [f"Write a program in {language} that {task}." for language in LANGUAGES for task in items(PROGRAMS)]
    rng.shuffle(pairs)
    yield from pairs


def signatures(rng: random.Random) -> Iterator[str]:
    """Functions of Python's library up to the end of their docstrings, to be completed."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    rng.shuffle(files)
    for file in files:
        source = file.read_text(encoding="utf-8", errors="replace")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and 40 < len(ast.get_docstring(node) or "") < 600:
                end = node.body[0].end_lineno
                yield "Complete this function.\n\n" + "\n".join(source.splitlines()[node.lineno - 1 : end])


def passage(prompt: str) -> str | None:
    """The longest line of a prompt, if it is long enough to be a text of its own."""
    longest = max(prompt.split("\n"), key=len)
    words = longest.split()
    return " ".join(words[:450]) if len(words) > 50 else None


def summaries(prompts: Iterable[str]) -> Iterator[str]:
    yield from (f"Summarize: {text}" for prompt in prompts if (text := passage(prompt)))


def questions(prompts: Iterable[str]) -> Iterator[str]:
    seen = set[str]()
    for prompt in prompts:
        for match in _QUESTION.findall(prompt)[:1]:
            question = " ".join(match.split())
            if question not in seen:
                seen.add(question)
                yield question[0].upper() + question[1:]


def questions_on_passages(prompts: Iterable[str]) -> Iterator[str]:
    for prompt in prompts:
        text, found = passage(prompt), _QUESTION.findall(prompt)
        if text and found:
            yield f"{text}\n{' '.join(found[0].split())}"


def translations(folders: Iterable[Path], rng: random.Random) -> Iterator[str]:
    """Sentences of 6 to 35 words out of German text: plain files, fortune files, HTML paragraphs."""
    found = set[str]()
    for folder in folders:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            text = file.read_bytes().decode("utf-8", "ignore")
            paragraphs = (
                re.findall(r"<p\b[^>]*>(.*?)</p>", text, re.DOTALL) if file.suffix == ".html" else text.split("\n%\n")
            )
            for paragraph in paragraphs:
                plain = " ".join(html.unescape(re.sub(r"<[^>]+>", "", paragraph)).split())
                found.update(s for s in re.split(r"(?<=[.!?]) (?=[A-ZÄÖÜ])", plain) if 6 <= len(s.split()) <= 35)
    sentences = sorted(found)
    rng.shuffle(sentences)
    yield from (f"Translate German to English: {sentence}" for sentence in sentences)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--instruct", type=Path, required=True, help="JSON Lines with a 'prompt' in every row")
    parser.add_argument("--german", type=Path, nargs="+", default=[], help="folders of German text in UTF-8")
    parser.add_argument("--each", type=int, default=900, help="most prompts of a kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with args.instruct.open(encoding="utf-8") as file:
        prompts = [json.loads(line)["prompt"] for line in file]
    rng.shuffle(prompts)
    kinds = {
        "summarization": summaries(prompts),
        "qa": questions(prompts),
        "rag": questions_on_passages(prompts),
        "translation": translations(args.german, rng),
        "writing": essays(rng),
        "programs": programs(rng),
        "code": signatures(rng),
    }
    rows = [
        (kind, prompt) for kind, source in kinds.items() for prompt, _ in zip(source, range(args.each), strict=False)
    ]
    rng.shuffle(rows)
    lines = [json.dumps({"kind": kind, "prompt": prompt}, ensure_ascii=False) for kind, prompt in rows]
    args.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print({kind: sum(k == kind for k, _ in rows) for kind in kinds})


if __name__ == "__main__":
    main()
