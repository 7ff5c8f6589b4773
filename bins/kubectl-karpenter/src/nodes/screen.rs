//! The view on the whole screen of a terminal, until its user quits.

use std::io::{Stdout, Write as _, stdout};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};
use serde_json::Value;
use tokio::sync::mpsc;

use super::decisions;
use super::paint::Painter;
use super::select::{Resource, Sort, selected};
use super::source::{Shared, Source};
use super::view::{Line, Look, Shown, cut, summary, table};
use crate::cluster::causes;
use crate::output::Layout;
use crate::why::{explanation, segment};

/// How often ages are drawn again.
const TICK: Duration = Duration::from_secs(1);
/// The terminal while the view uses it; restored on drop.
struct Terminal {
    out: Stdout,
    last: Vec<String>,
}

impl Terminal {
    fn take() -> anyhow::Result<Self> {
        enable_raw_mode().context("cannot read keys from the terminal")?;
        let mut taken = Self {
            out: stdout(),
            last: Vec::new(),
        };
        // A panic is printed on the screen that the user sees afterwards.
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            earlier(panic);
        }));
        execute!(taken.out, EnterAlternateScreen, Hide).context("cannot use the terminal")?;
        Ok(taken)
    }

    /// Draws lines; only those that differ from what is there are written.
    fn draw(&mut self, lines: Vec<String>, size: (u16, u16)) -> std::io::Result<()> {
        queue!(self.out, BeginSynchronizedUpdate)?;
        if self.last.len() != lines.len() {
            self.last.clear();
            queue!(self.out, Clear(ClearType::All))?;
        }
        for (at, line) in lines.iter().enumerate().take(usize::from(size.1)) {
            if self.last.get(at) != Some(line) {
                let row = u16::try_from(at).unwrap_or(u16::MAX);
                queue!(self.out, MoveTo(0, row))?;
                self.out.write_all(line.as_bytes())?;
                queue!(self.out, Clear(ClearType::UntilNewLine))?;
            }
        }
        queue!(self.out, EndSynchronizedUpdate)?;
        self.out.flush()?;
        self.last = lines;
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Leaves the terminal as it was.
fn restore() {
    // If the terminal is gone, nothing is to be restored.
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// What the user has chosen.
struct Choice {
    shown: Shown,
    sort: Sort,
    filter: String,
    /// Whether keys are letters of the filter.
    typing: bool,
    /// The place of the selected node among those shown.
    at: usize,
    /// The first node on the screen.
    first: usize,
    /// Text in place of the table.
    text: Option<Text>,
}

/// An explanation of a node, or the latest decisions.
struct Text {
    lines: Vec<String>,
    first: usize,
}

/// What a key asks for.
enum Wish {
    Nothing,
    Quit,
    Why,
    Decisions,
}

/// Shows the view until the user quits.
pub(super) async fn run(
    source: &Source,
    shown: Shown,
    sort: Sort,
    painter: &Painter,
) -> anyhow::Result<()> {
    let shared = Rc::new(Shared::default());
    *shared.trouble.borrow_mut() = "connecting".to_owned();
    let mut choice = Choice {
        shown,
        sort,
        filter: String::new(),
        typing: false,
        at: 0,
        first: 0,
        text: None,
    };
    let mut terminal = Terminal::take()?;
    let mut keys = keys();
    let mut tick = tokio::time::interval(TICK);
    let mut following = std::pin::pin!(source.follow(&shared));
    loop {
        let size = size().context("cannot read the size of the terminal")?;
        let lines = choice.lines(&shared, size);
        let lines = lines.into_iter().map(|line| painter.paint(&line)).collect();
        terminal
            .draw(lines, size)
            .context("cannot write to the terminal")?;
        let event = tokio::select! {
            event = keys.recv() => event,
            () = shared.changed.notified() => continue,
            _ = tick.tick() => {
                // The time goes on between two events.
                let mut state = shared.state.borrow_mut();
                if state.at > 0 && shared.trouble.borrow().is_empty() {
                    state.at = state.at.max(jiff::Timestamp::now().as_second().min(state.at + 1));
                }
                continue;
            }
            () = &mut following => continue,
        };
        match event {
            Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                let rows = usize::from(size.1);
                match choice.press(key, rows) {
                    Wish::Quit => return Ok(()),
                    Wish::Why => {
                        let name = choice.selected_name(&shared);
                        let text = tokio::select! {
                            text = why(&shared, name.as_deref(), size) => text,
                            () = &mut following => continue,
                        };
                        choice.text = Some(text);
                    }
                    Wish::Decisions => {
                        let text = tokio::select! {
                            text = decided(&shared) => text,
                            () = &mut following => continue,
                        };
                        choice.text = Some(text);
                    }
                    Wish::Nothing => {}
                }
            }
            Some(Event::Resize(..)) => terminal.last.clear(),
            Some(_) => {}
            // The terminal is gone.
            None => return Ok(()),
        }
    }
}

/// Reads keys in a thread: a terminal cannot be waited for otherwise.
fn keys() -> mpsc::UnboundedReceiver<Event> {
    let (sent, keys) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = crossterm::event::read() {
            if sent.send(event).is_err() {
                return;
            }
        }
    });
    keys
}

/// Asks Karpenter why a node is kept.
async fn why(shared: &Shared, name: Option<&str>, size: (u16, u16)) -> Text {
    let asked = async {
        let name = segment(name.context("no node is selected, or it has not joined yet")?)?;
        ask(shared, &format!("/nodes/{name}/explanation?timeout=1s")).await
    };
    let answer = asked.await;
    let layout = Layout {
        width: Some(usize::from(size.0)),
        headers: true,
    };
    let text = match answer {
        Ok(answer) => explanation(&answer, layout),
        Err(error) => causes(error.as_ref()),
    };
    let lines = text
        .lines()
        .map(|line| crate::output::escaped(line).into_owned());
    Text {
        lines: lines.collect(),
        first: 0,
    }
}

/// Asks Karpenter what it decided lately.
async fn decided(shared: &Shared) -> Text {
    // Karpenter's time, which the state has, and not that of this computer.
    let now = jiff::Timestamp::from_second(shared.state.borrow().at);
    let now = now.unwrap_or_else(|_| jiff::Timestamp::now());
    let lines = match ask(shared, &decisions::question(now)).await {
        Ok(answer) => decisions::lines(&answer),
        Err(error) => {
            let text = causes(error.as_ref());
            vec![crate::output::escaped(&text).into_owned()]
        }
    };
    Text { lines, first: 0 }
}

async fn ask(shared: &Shared, path: &str) -> anyhow::Result<Value> {
    let mut link = shared.link.lock().await;
    let server = link.as_mut().context("Karpenter cannot be asked")?;
    server.get(path).await
}

impl Choice {
    fn selected_name(&self, shared: &Shared) -> Option<String> {
        if self.shown.by_pool {
            return None;
        }
        let state = shared.state.borrow();
        let nodes = selected(&state, &self.sort, &self.filter);
        let node = nodes.get(self.at)?;
        (!node.node.is_empty()).then(|| node.node.clone())
    }

    /// Returns the lines of the screen.
    fn lines(&mut self, shared: &Shared, (columns, rows): (u16, u16)) -> Vec<Line> {
        let (width, height) = (Some(usize::from(columns)), usize::from(rows));
        let state = shared.state.borrow();
        let nodes = selected(&state, &self.sort, &self.filter);
        let mut lines = summary(&state, &nodes, &self.shown, width);
        lines.push(Line::new());
        let room = height.saturating_sub(lines.len() + 1);
        match &self.text {
            Some(text) => {
                let shown = text.lines.iter().skip(text.first).take(room);
                lines.extend(shown.map(|line| vec![(line.clone(), Look::Plain)]));
            }
            None => {
                let room = room.saturating_sub(usize::from(self.shown.headers));
                self.at = self.at.min(nodes.len().saturating_sub(1));
                self.first = self
                    .first
                    .min(self.at)
                    .max((self.at + 1).saturating_sub(room));
                let visible = match self.shown.by_pool {
                    true => nodes.as_slice(),
                    false => nodes.get(self.first..).unwrap_or_default(),
                };
                let visible = match self.shown.by_pool {
                    true => visible,
                    false => visible.get(..room.min(visible.len())).unwrap_or_default(),
                };
                let mut table = table(&state, visible, &self.shown, width);
                let header = usize::from(self.shown.headers);
                if !self.shown.by_pool
                    && let Some(line) = table.get_mut(header + self.at - self.first)
                {
                    for (_, look) in line.iter_mut() {
                        *look = Look::Selected;
                    }
                }
                lines.extend(table);
            }
        }
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), Line::new());
        lines.push(self.foot(shared));
        lines.into_iter().map(|line| cut(line, width)).collect()
    }

    /// Returns the last line: what is wrong, what is typed, or the keys.
    fn foot(&self, shared: &Shared) -> Line {
        let trouble = shared.trouble.borrow();
        if self.typing {
            return vec![(format!("/{}▏", self.filter), Look::Plain)];
        }
        if self.text.is_some() {
            return vec![("↑↓ scroll  esc back  q quit".to_owned(), Look::Dim)];
        }
        if !trouble.is_empty() {
            let text = crate::output::escaped(&trouble).into_owned();
            return vec![(text, Look::Bad)];
        }
        let filter = match self.filter.is_empty() {
            true => String::new(),
            false => format!("  filter {}", self.filter),
        };
        let keys = format!(
            "q quit  enter why  / filter  s {}  r resources  p pools  d decisions{filter}",
            self.sort.name()
        );
        vec![(keys, Look::Dim)]
    }

    fn press(&mut self, key: KeyEvent, rows: usize) -> Wish {
        let page = rows.saturating_sub(6).max(1);
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Wish::Quit;
        }
        // Escape and a letter, one at once after the other, come as one key.
        if key.modifiers.contains(KeyModifiers::ALT) {
            if self.typing {
                return self.press(KeyEvent::from(KeyCode::Esc), rows);
            }
            return Wish::Nothing;
        }
        if self.typing {
            match key.code {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => {
                    self.typing = false;
                    self.filter.clear();
                }
                KeyCode::Backspace => {
                    self.filter.pop();
                }
                KeyCode::Char(letter) if !letter.is_control() => self.filter.push(letter),
                _ => {}
            }
            self.at = 0;
            return Wish::Nothing;
        }
        if let Some(text) = &mut self.text {
            let last = text.lines.len().saturating_sub(1);
            match key.code {
                KeyCode::Char('q') => return Wish::Quit,
                KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace => self.text = None,
                KeyCode::Down | KeyCode::Char('j') => text.first = (text.first + 1).min(last),
                KeyCode::Up | KeyCode::Char('k') => text.first = text.first.saturating_sub(1),
                KeyCode::PageDown => text.first = (text.first + page).min(last),
                KeyCode::PageUp => text.first = text.first.saturating_sub(page),
                _ => {}
            }
            return Wish::Nothing;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Enter => return Wish::Why,
            // `lines` limits the place to what there is.
            KeyCode::Down | KeyCode::Char('j') => self.at += 1,
            KeyCode::Up | KeyCode::Char('k') => self.at = self.at.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Right => self.at += page,
            KeyCode::PageUp | KeyCode::Left => self.at = self.at.saturating_sub(page),
            KeyCode::Home => self.at = 0,
            KeyCode::End => self.at = usize::MAX >> 1,
            KeyCode::Char('d') => return Wish::Decisions,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('p') => self.shown.by_pool = !self.shown.by_pool,
            KeyCode::Char('r') => {
                self.shown.resources = match self.shown.resources.as_slice() {
                    [Resource::Cpu] => vec![Resource::Memory],
                    [Resource::Memory] => vec![Resource::Cpu, Resource::Memory],
                    [Resource::Cpu, Resource::Memory] => vec![Resource::Pods],
                    _ => vec![Resource::Cpu],
                };
            }
            _ => {}
        }
        Wish::Nothing
    }
}
