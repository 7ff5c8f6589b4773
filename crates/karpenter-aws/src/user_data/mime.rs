//! MIME multi-part documents, as cloud-init reads them.
//!
//! Parts of the user's documents are kept byte for byte, headers included, except for carriage returns: nothing is
//! decoded and encoded again.
// UPSTREAM: pkg/providers/amifamily/bootstrap/mime/mime.go

/// The content type of a document for nodeadm.
pub(super) const NODE_CONFIG: &str = "application/node.eks.aws";

/// The reason why a multi-part document is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MimeError {
    /// A header line has no name or no colon.
    #[error("`{0}` is not a header line")]
    Header(String),
    /// The Content-Type header is missing.
    #[error("missing Content-Type header")]
    NoContentType,
    /// The content type is not multipart.
    #[error("the content type `{0}` is not multipart")]
    NotMultipart(String),
    /// The content type has no boundary.
    #[error("the content type `{0}` has no boundary")]
    NoBoundary(String),
    /// The closing boundary is missing, so the document was cut off.
    #[error("missing closing boundary `--{0}--`")]
    Unterminated(String),
}

/// One part: its header lines and its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    headers: Vec<String>,
    content: String,
}

impl Part {
    /// Creates the part of a shell script.
    // DIFFERS: upstream declares every script as us-ascii.
    pub(super) fn script(content: String) -> Part {
        let charset = if content.is_ascii() {
            "us-ascii"
        } else {
            "utf-8"
        };
        Part::new(
            &format!("text/x-shellscript; charset=\"{charset}\""),
            content,
        )
    }

    pub(super) fn new(content_type: &str, content: String) -> Part {
        Part {
            headers: vec![format!("Content-Type: {content_type}")],
            content,
        }
    }
}

/// Returns whether a text is a MIME document by its first lines.
pub(super) fn is_mime(text: &str) -> bool {
    let text = text.trim_start();
    text.starts_with("MIME-Version:") || text.starts_with("Content-Type:")
}

pub(super) fn parse(document: &str) -> Result<Vec<Part>, MimeError> {
    let document = document.replace('\r', "");
    let (headers, body) = split_headers(document.trim_start())?;
    let content_type = headers
        .iter()
        .find_map(|line| header_value(line, "content-type"))
        .ok_or(MimeError::NoContentType)?;
    if !content_type.to_ascii_lowercase().starts_with("multipart/") {
        return Err(MimeError::NotMultipart(content_type));
    }
    let boundary = boundary(&content_type).ok_or(MimeError::NoBoundary(content_type))?;
    parts(body, &boundary)
}

/// Returns the parts between the boundary lines; text before the first and after the last boundary is dropped.
fn parts(body: &str, boundary: &str) -> Result<Vec<Part>, MimeError> {
    let separator = format!("--{boundary}");
    let terminator = format!("{separator}--");
    let mut parts = Vec::new();
    let mut current: Option<Vec<&str>> = None;
    for line in body.split('\n') {
        let bare = line.trim_end();
        let last = bare == terminator;
        if !last && bare != separator {
            if let Some(lines) = &mut current {
                lines.push(line);
            }
            continue;
        }
        if let Some(lines) = current.take() {
            let (headers, content) = split_part(&lines)?;
            parts.push(Part { headers, content });
        }
        if last {
            return Ok(parts);
        }
        current = Some(Vec::new());
    }
    Err(MimeError::Unterminated(boundary.to_owned()))
}

fn split_part(lines: &[&str]) -> Result<(Vec<String>, String), MimeError> {
    let text = lines.join("\n");
    // A part without headers starts with the empty line that would end them.
    let (headers, content) = match text.strip_prefix('\n') {
        Some(content) => (Vec::new(), content),
        None => split_headers(&text)?,
    };
    Ok((headers, content.to_owned()))
}

/// Returns the header lines (continuations joined), and the text after the empty line.
fn split_headers(text: &str) -> Result<(Vec<String>, &str), MimeError> {
    let mut headers: Vec<String> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        if line.trim_end().is_empty() {
            return Ok((headers, after));
        }
        match headers.last_mut() {
            Some(header) if line.starts_with([' ', '\t']) => {
                header.push(' ');
                header.push_str(line.trim());
            }
            _ if is_header(line) => headers.push(line.trim_end().to_owned()),
            _ => return Err(MimeError::Header(line.to_owned())),
        }
        rest = after;
    }
    Ok((headers, rest))
}

fn is_header(line: &str) -> bool {
    line.split_once(':').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic())
    })
}

fn header_value(line: &str, name: &str) -> Option<String> {
    let (key, value) = line.split_once(':')?;
    key.eq_ignore_ascii_case(name)
        .then(|| value.trim().to_owned())
}

/// Returns the `boundary` parameter of a content type.
fn boundary(content_type: &str) -> Option<String> {
    let (_, parameters) = content_type.split_once(';')?;
    let mut rest = parameters;
    loop {
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(';').unwrap_or((after, "")),
        };
        if name
            .trim_matches([' ', '\t', ';'])
            .eq_ignore_ascii_case("boundary")
        {
            let value = value.trim_end();
            return (!value.is_empty()).then(|| value.to_owned());
        }
        rest = next;
    }
}

/// Renders a document with these parts.
pub(super) fn render(parts: &[Part]) -> String {
    let boundary = free_boundary(parts);
    let mut text =
        format!("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"{boundary}\"\n\n");
    for part in parts {
        text.push_str("--");
        text.push_str(&boundary);
        text.push('\n');
        for header in &part.headers {
            text.push_str(header);
            text.push('\n');
        }
        text.push('\n');
        text.push_str(&part.content);
        text.push('\n');
    }
    text.push_str(&format!("--{boundary}--\n"));
    // cloud-init runs scripts unchanged: a carriage return would become part of an argument.
    text.replace('\r', "")
}

/// Returns upstream's boundary, or a variant that no part contains.
fn free_boundary(parts: &[Part]) -> String {
    let taken = |boundary: &str| {
        let separator = format!("--{boundary}");
        parts.iter().any(|part| {
            part.content
                .lines()
                .any(|line| line.starts_with(&separator))
        })
    };
    let mut boundary = "//".to_owned();
    let mut number = 0;
    while taken(&boundary) {
        number += 1;
        boundary = format!("=={number}==");
    }
    boundary
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts_of(text: &str) -> Vec<(Vec<String>, String)> {
        parse(text)
            .unwrap()
            .into_iter()
            .map(|part| (part.headers, part.content))
            .collect()
    }

    #[test]
    fn headers_may_come_in_any_order_and_case_and_fold() {
        let text = "content-TYPE: Multipart/Mixed;\n charset=utf-8; Boundary=abc\nMIME-Version: 1.0\n\n\
                    preamble\n--abc\nContent-Type: text/plain\nX-Y: 1\n\nhello\n--abc--\nepilogue";
        assert_eq!(
            parts_of(text),
            [(
                vec!["Content-Type: text/plain".to_owned(), "X-Y: 1".to_owned()],
                "hello".to_owned()
            )]
        );
    }

    #[test]
    fn content_is_kept_but_for_carriage_returns() {
        let text = "Content-Type: multipart/mixed; boundary=\"a b\"\r\n\r\n--a b\r\n\r\n\r\n two\r\n--a bc\r\n--a b\r\n\
                    Content-Transfer-Encoding: base64\r\n\r\naGk=\r\n--a b--\r\n";
        assert_eq!(
            parts_of(text),
            [
                (vec![], "\n two\n--a bc".to_owned()),
                (
                    vec!["Content-Transfer-Encoding: base64".to_owned()],
                    "aGk=".to_owned()
                )
            ]
        );
    }

    /// Conformance: AWS-userdata-16
    #[test]
    fn an_invalid_document_is_an_error_with_the_reason() {
        let wrong = |text: &str| parse(text).unwrap_err().to_string();
        insta::assert_snapshot!(
            [
                wrong("MIME-Version: 1.0\n\nx"),
                wrong("Content-Type: text/plain\n\nx"),
                wrong("Content-Type: multipart/mixed\n\nx"),
                wrong("Content-Type: multipart/mixed; boundary=\"\"\n\nx"),
                wrong("Content-Type: multipart/mixed; boundary=\"x\n\n--x\n\n--x--"),
                wrong("Content-Type: multipart/mixed; boundary=x\nno header\n\n--x--"),
                wrong("Content-Type: multipart/mixed; boundary=x\n\n--x\nno header\n\n--x--"),
                wrong("Content-Type: multipart/mixed; boundary=x\n\n--x\n\ncut off"),
                wrong("MIME-Version:"),
            ]
            .join("\n"),
            @r#"
            missing Content-Type header
            the content type `text/plain` is not multipart
            the content type `multipart/mixed` has no boundary
            the content type `multipart/mixed; boundary=""` has no boundary
            the content type `multipart/mixed; boundary="x` has no boundary
            `no header` is not a header line
            `no header` is not a header line
            missing closing boundary `--x--`
            missing Content-Type header
            "#
        );
    }

    #[test]
    fn another_boundary_is_used_if_a_part_contains_it() {
        let parts = [
            Part::new("text/plain", "a\n--//\nb".to_owned()),
            Part::new("text/plain", "--==1==x".to_owned()),
        ];
        let text = render(&parts);
        assert!(text.contains("boundary=\"==2==\""));
        assert_eq!(parse(&text).unwrap(), parts);
    }
}
