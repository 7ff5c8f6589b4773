//! The blocks of the book that tests run.

/// A fenced block with a marker on the line before it.
pub(crate) struct Marked {
    pub(crate) language: String,
    pub(crate) text: String,
    pub(crate) place: String,
}

/// Returns the blocks of a text with the marker `<!-- run: PROGRAM -->`, in their order; `page` is part of their places.
pub(crate) fn marked(page: &str, text: &str, program: &str) -> Vec<Marked> {
    let marker = format!("<!-- run: {program} -->\n```");
    let block = |(number, part): (usize, &str)| {
        let (language, rest) = part.split_once('\n').unwrap_or((part, ""));
        let (text, _) = rest.split_once("\n```").unwrap_or((rest, ""));
        Marked {
            language: language.to_owned(),
            text: text.to_owned(),
            place: format!("{page}, marked block {number}"),
        }
    };
    let parts = text.split(&marker).enumerate().skip(1);
    parts.map(block).collect()
}
