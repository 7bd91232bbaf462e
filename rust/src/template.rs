use crate::ffi::{fallible, free, text, WeftText};
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};

pub struct WeftTemplate(Environment<'static>);

const NAME: &str = "chat_template";

impl WeftTemplate {
    /// The environment of `_compile_jinja_template` in transformers' chat_template_utils.py.
    fn parse(source: &str) -> Result<Self, String> {
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.set_formatter(|out, _, value| {
            let mut shown = String::new();
            python_str(value, &mut shown);
            out.write_str(&shown).map_err(Error::from)
        });
        env.add_filter("tojson", tojson);
        env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        env.add_function("strftime_now", strftime_now);
        env.add_template_owned(NAME, without_generation_tags(source)).map_err(|e| describe(&e))?;
        Ok(WeftTemplate(env))
    }

    fn render(&self, context: &str) -> Result<String, String> {
        let context: Value = serde_json::from_str(context).map_err(|e| format!("context: {e}"))?;
        let found = self.0.get_template(NAME).and_then(|template| template.render(context));
        found.map_err(|e| describe(&e))
    }
}

fn describe(error: &Error) -> String {
    let reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_string);
    error.line().map_or(reason.clone(), |line| format!("line {line}: {reason}"))
}

/// `{% generation %}` marks what an assistant said, for training masks. It renders as its body, in
/// a scope.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(begin) = rest.find("{%") {
        let end = rest[begin..].find("%}").map_or(rest.len(), |size| begin + size);
        let tag = &rest[begin..end];
        out.push_str(&rest[..begin]);
        match tag[2..].trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
            _ => out.push_str(tag),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// Python's str(): what Jinja itself would print.
fn python_str(value: &Value, out: &mut String) {
    match (value.kind(), value.as_str()) {
        (ValueKind::Undefined, _) => {}
        (_, Some(text)) => out.push_str(text),
        _ => python_repr(value, out),
    }
}

fn python_repr(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            let items = value.try_iter().into_iter().flatten();
            list(out, "[", "]", items, |item, out| python_repr(&item, out));
        }
        ValueKind::Map => {
            let keys = value.try_iter().into_iter().flatten();
            list(out, "{", "}", keys, |key, out| {
                python_repr(&key, out);
                out.push_str(": ");
                python_repr(&value.get_item(&key).unwrap_or_default(), out);
            });
        }
        _ => out.push_str(&value.to_string()),
    }
}

fn list<T>(
    out: &mut String,
    open: &str,
    close: &str,
    items: impl Iterator<Item = T>,
    mut write: impl FnMut(T, &mut String),
) {
    out.push_str(open);
    for (i, item) in items.enumerate() {
        out.push_str(if i == 0 { "" } else { ", " });
        write(item, out);
    }
    out.push_str(close);
}

fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark || c == '\\' => out.extend(['\\', c]),
            c if c < ' ' || c == '\x7f' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(mark);
}

/// transformers replaces Jinja's filter, which escapes for HTML, by json.dumps with its keywords.
fn tojson(value: Value, options: Kwargs) -> Result<String, Error> {
    let fail = |reason: String| Error::new(ErrorKind::InvalidOperation, reason);
    if value.is_undefined() {
        return Err(fail("tojson of a value that is not defined".into()));
    }
    let indent = options.get::<Option<usize>>("indent")?;
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let [comma, colon] = match separators {
        None => [if indent.is_some() { "," } else { ", " }.into(), ": ".into()],
        Some(pair) => {
            pair.try_into().map_err(|_| fail("tojson: separators is a pair of texts".into()))?
        }
    };

    let mut tree = serde_json::to_value(&value).map_err(|e| fail(e.to_string()))?;
    if sort {
        tree.sort_all_objects();
    }
    let mut out = String::new();
    Dumper { indent, comma, colon }.write(&tree, 0, &mut out);
    Ok(if ascii { escape_non_ascii(&out) } else { out })
}

struct Dumper {
    indent: Option<usize>,
    comma: String,
    colon: String,
}

impl Dumper {
    fn write(&self, value: &serde_json::Value, depth: usize, out: &mut String) {
        use serde_json::Value::{Array, Object};
        match value {
            Array(items) if !items.is_empty() => {
                self.items(('[', ']'), items.iter(), depth, out, |item, out| {
                    self.write(item, depth + 1, out);
                });
            }
            Object(members) if !members.is_empty() => {
                self.items(('{', '}'), members.iter(), depth, out, |(key, item), out| {
                    out.push_str(&serde_json::Value::from(key.as_str()).to_string());
                    out.push_str(&self.colon);
                    self.write(item, depth + 1, out);
                });
            }
            plain => out.push_str(&plain.to_string()),
        }
    }

    fn items<T>(
        &self,
        marks: (char, char),
        items: impl Iterator<Item = T>,
        depth: usize,
        out: &mut String,
        write: impl Fn(T, &mut String),
    ) {
        out.push(marks.0);
        for (i, item) in items.enumerate() {
            out.push_str(if i == 0 { "" } else { &self.comma });
            self.new_line(depth + 1, out);
            write(item, out);
        }
        self.new_line(depth, out);
        out.push(marks.1);
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}

fn escape_non_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

/// `datetime.now().strftime(format)`: local time.
fn strftime_now(format: String) -> Result<String, Error> {
    let format = std::ffi::CString::new(format).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, "strftime_now: the format holds a zero byte")
    })?;
    let mut out = [0u8; 1024];
    // SAFETY: all pointers are to live locals; strftime writes at most `out.len()` bytes.
    let size = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut local: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut local);
        libc::strftime(out.as_mut_ptr().cast(), out.len(), format.as_ptr(), &local)
    };
    Ok(String::from_utf8_lossy(&out[..size]).into_owned())
}

#[no_mangle]
pub unsafe extern "C" fn weft_template_parse(
    source: *const u8,
    size: usize,
    error: *mut WeftText,
) -> *mut WeftTemplate {
    fallible(error, || WeftTemplate::parse(text(source, size)?).map(Box::new))
        .map_or(std::ptr::null_mut(), Box::into_raw)
}

#[no_mangle]
pub unsafe extern "C" fn weft_template_free(template: *mut WeftTemplate) {
    free(template);
}

#[no_mangle]
pub unsafe extern "C" fn weft_template_render(
    template: *const WeftTemplate,
    context: *const u8,
    size: usize,
    out: *mut WeftText,
    error: *mut WeftText,
) -> bool {
    let rendered = fallible(error, || (*template).render(text(context, size)?));
    rendered.map(|found| out.write(found.into())).is_some()
}
