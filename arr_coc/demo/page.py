"""The demo page: its parts and their event handlers.

Neither the server nor the page sends requests to other machines.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

import gradio as gr
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..viewing import draw_fetch
from .steps import DemoExample, Session, Step, answer_in_steps, budgets, find_examples, strategies

TITLE = "ARR-COC: ask an image"
NO_OTHER = "no other"
IDLE = 3600  # seconds after which a visitor's image is forgotten, and files are deleted

TO_ANSWERS = "() => { if (innerWidth < 700) document.getElementById('answers').scrollIntoView() }"
"""Scrolls to the answers if they are below the questions."""

Updates = dict[Any, Any]  # new values by part of the page


@dataclass(frozen=True)
class Side:
    """The parts that show one strategy's answer: a column with a picture, the answer and a note below it."""

    column: Any
    picture: Any
    answer: Any
    note: Any

    def cleared(self, strategy: str | None = None) -> Updates:
        label = "Answer" if strategy is None else f"Answer of {strategy}"
        return {self.answer: gr.Textbox("", label=label), self.note: ""}

    def shown(self, step: Step) -> Updates:
        fetch = step.fetch
        fetched = f"{int(fetch.counts.sum())} of {fetch.relevance.shape[-1]} patches fetched"
        confidence = "" if step.probability is None else f", confidence {step.probability:.1%}"
        warning = f"; {step.warning}" if step.warning else ""
        return {self.answer: step.text, self.note: f"{fetched}{confidence}{warning}"}


class DemoPage:
    """A Gradio page for one model, `blocks`. Each visitor has a `Session` for everything else."""

    def __init__(self, model: ArrCocForConditionalGeneration) -> None:
        self.model = model
        with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(IDLE, IDLE), fill_width=True) as self.blocks:
            self.session = gr.State(None, time_to_live=IDLE)
            gr.Markdown(
                "# Ask an image\nThe model fetches the patches that *your question* needs: outlined in the picture."
            )
            with gr.Row():
                with gr.Column(scale=1, min_width=300):
                    examples = self._lay_out_questions()
                with gr.Column(scale=2, min_width=300, elem_id="answers"):
                    self._lay_out_answers()
            self._connect(examples)

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _lay_out_questions(self) -> list[tuple[Any, DemoExample]]:
        """Lays out the left column; returns the examples' buttons."""
        fetcher = self.model.config.fetcher_config
        names = strategies(self.model.config)
        self.file = gr.File(label="Image", file_types=["image"], type="binary", height=130, elem_id="file")
        self.question = gr.Textbox(
            label="Question", placeholder="What is the total?", lines=1, max_lines=4, elem_id="question"
        )
        self.ask_button = gr.Button("Ask", variant="primary", elem_id="ask")
        with gr.Row():
            self.strategy = gr.Dropdown(
                names, value=fetcher.strategy, label="Strategy", min_width=130, elem_id="strategy"
            )
            self.other = gr.Dropdown(
                [NO_OTHER, *names], value=NO_OTHER, label="Side by side with", min_width=130, elem_id="other"
            )
        self.budget = gr.Dropdown(
            budgets(self.model.config),
            value=str(fetcher.budget),
            label="Budget: a name, or a number of patches",
            allow_custom_value=True,
            elem_id="budget",
        )
        examples = list(find_examples())
        if examples:
            gr.Markdown("Examples")
        with gr.Row():
            return [(gr.Button(f"{e.name}: {e.question}", size="sm", min_width=200), e) for e in examples]

    def _lay_out_answers(self) -> None:
        """Lays out the right column: two sides, of which the second is for a second strategy, and earlier answers."""
        self.message = gr.HTML(visible=False, elem_id="message")
        with gr.Row():
            self.sides = (self._side("first", visible=True), self._side("second", visible=False))
        self.asked = gr.Gallery(
            label="Asked so far", columns=4, height=220, object_fit="contain", visible=False, elem_id="asked"
        )

    @staticmethod
    def _side(name: str, *, visible: bool) -> Side:
        with gr.Column(min_width=280, visible=visible, elem_id=name) as column:
            answer = gr.Textbox(label="Answer", interactive=False, elem_id=f"{name}-answer")
            picture = gr.Image(
                label="Fetched patches",
                interactive=False,
                buttons=["fullscreen"],
                elem_id=f"{name}-picture",
                alt_text="The image, with the fetched patches outlined",
            )
            note = gr.Markdown(elem_id=f"{name}-note")
        return Side(column, picture, answer, note)

    # ---- events ---------------------------------------------------------------------------------------------------

    def _connect(self, examples: list[tuple[Any, DemoExample]]) -> None:
        # The model answers one question at a time, so that each is as fast as the machine allows; others wait.
        alone: Any = {"concurrency_id": "model", "concurrency_limit": 1, "api_visibility": "private"}
        shown = [self.message, self.session, self.asked]
        for side in self.sides:
            shown += [side.column, side.picture, side.answer, side.note]
        asking: Any = {
            "fn": self.ask,
            "inputs": [self.session, self.question, self.strategy, self.other, self.budget],
            "outputs": shown,
            "show_progress": "minimal",
            "show_progress_on": self.sides[0].answer,
            **alone,
        }
        showing: Any = {"show_progress": "minimal", "show_progress_on": self.sides[0].picture, **alone}
        self.file.upload(self.open, self.file, shown, **showing)
        self.file.clear(self.forget, None, shown, api_visibility="private")
        asks = [self.question.submit, self.ask_button.click]
        gr.on(asks, **asking)
        for button, example in examples:
            outputs = [self.file, self.question, *shown]
            button.click(partial(self.begin, example), None, outputs, **showing).then(**asking)
        gr.on([*asks, *(button.click for button, _ in examples)], None, js=TO_ANSWERS)

    def open(self, content: bytes | None) -> Updates:
        """Makes an uploaded file the image of the questions."""
        if content is None:
            return self.forget()
        try:
            session = Session.open(self.model, content)
        except ValueError as error:
            return {**self.forget(), self.message: _problem(error)}
        return {**self.forget(), self.session: session, self.sides[0].picture: session.image}

    def forget(self) -> Updates:
        """Clears the page."""
        hidden = gr.HTML("", visible=False)
        updates: Updates = {self.message: hidden, self.session: None, self.asked: gr.Gallery([], visible=False)}
        for side in self.sides:
            updates |= {**side.cleared(), side.picture: None}
        return updates

    def begin(self, example: DemoExample) -> Updates:
        """Replaces the visitor's file and question by an example."""
        return {**self.open(example.path.read_bytes()), self.file: None, self.question: example.question}

    def ask(
        self, session: Session | None, question: str, strategy: str, other: str, budget: str | None
    ) -> Iterator[Updates]:
        """Yields updates while the model answers: the picture after the fetch, the text with every token."""
        names = [strategy] if other == NO_OTHER else [strategy, other]
        try:
            if session is None:
                raise ValueError("Drop an image first, or choose an example.")
            if not question.strip():
                raise ValueError("Write a question first.")
            yield self._asking(session, names)
            answers = []
            for side, name in zip(self.sides, names, strict=False):
                answers.append((yield from self._answer(side, session, question, name, budget)))
            session = session.answered(question, answers)
            yield {self.session: session, self.asked: gr.Gallery(list(session.asked), visible=True)}
        except ValueError as error:
            yield {self.message: _problem(error)}

    def _answer(
        self, side: Side, session: Session, question: str, strategy: str, budget: str | None
    ) -> Generator[Updates, None, Step]:
        """Yields updates of one side; returns the last step."""
        # Configured values are not passed, so that the model's allocator can choose the budget.
        configured = str(self.model.config.fetcher_config.budget)
        chosen = None if budget in (None, "", configured) else budget
        steps = answer_in_steps(self.model, session.encoding, question, strategy=strategy, budget=chosen)
        step = next(steps)
        picture = draw_fetch(session.image, step.fetch, turned=session.encoding.turned[0])
        yield {**side.shown(step), side.picture: picture}
        for step in steps:
            yield side.shown(step)
        return step

    def _asking(self, session: Session, names: list[str]) -> Updates:
        """Shows the plain image on each side that a strategy will fill, and hides the other side."""
        updates: Updates = {self.message: gr.HTML("", visible=False)}
        for number, side in enumerate(self.sides):
            name = names[number] if number < len(names) else None
            picture = None if name is None else session.image
            updates |= {**side.cleared(name), side.picture: picture, side.column: gr.Column(visible=name is not None)}
        return updates


def _problem(error: ValueError) -> Any:
    """One line, which screen readers announce at once."""
    line = html.escape(" ".join(str(error).split()))
    return gr.HTML(f'<p role="alert">{line}</p>', visible=True)


POLICY = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; base-uri 'self'; form-action 'self'"
"""The Content-Security-Policy: the browser can load Gradio's files only, whatever URLs they contain."""

MAX_UPLOAD = 32 * 2**20  # the most bytes of a file
VISITORS = 64  # the most visitors whose images are kept; beyond it, the visitor idle for longest loses the session

STYLE = """
html { overflow-anchor: none; }
@media (max-width: 700px) { #answers { min-height: 100vh; } }
#first-picture img, #second-picture img { max-height: 66vh; object-fit: contain; }
#message p { margin: 0; padding: .6em .8em; border-left: 4px solid #c00; background: #c0000014; font-weight: 600; }
:focus-visible { outline: 3px solid #ff6a00 !important; outline-offset: 1px; }
footer { display: none !important; }
"""


class OwnFilesOnly:
    """Adds headers that forbid the browser to load from other hosts or to send a referrer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = POLICY
                headers["Referrer-Policy"] = "no-referrer"
            await send(message)

        await self.app(scope, receive, send_with_policy)


def run(page: DemoPage, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serves a page until the process is interrupted; `ready` is called with its URL when the server is ready. Raises
    OSError: the port is in use."""
    theme = gr.themes.Default(primary_hue="blue")
    theme.set(button_primary_background_fill="*primary_700", button_primary_background_fill_hover="*primary_800")
    _, url, _ = page.blocks.launch(
        server_name=host,
        server_port=port,
        app_kwargs={"middleware": [Middleware(OwnFilesOnly)]},
        css=STYLE,
        theme=theme,
        footer_links=[],
        inbrowser=False,
        max_file_size=MAX_UPLOAD,
        mcp_server=False,
        prevent_thread_lock=True,
        pwa=False,
        quiet=True,
        run_history=False,
        share=False,
        ssr_mode=False,
        state_session_capacity=VISITORS,
    )
    try:
        ready(url)
        Event().wait()
    finally:
        page.blocks.close(verbose=False)
