//! Java's property files, the format of YCSB's workloads: names, values, and their places.
//!
//! The syntax is that of `java.util.Properties.load`: a line is a name, then `=`, `:` or white
//! space, then a value; `#` or `!` begins a comment; a backslash at the end continues a line,
//! elsewhere it escapes the next character (`\t`, `\n`, `\r`, `\f`, `\uXXXX`, any other one
//! itself). If a name occurs twice, the last value counts.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// One property.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Property {
    name: String,
    value: String,
    /// Its place in the source, for messages.
    place: String,
}

/// Properties in the order in which they were given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties {
    all: Vec<Property>,
}

impl Properties {
    /// Reads the file at `path`.
    pub fn load(path: &Path) -> Result<Properties, String> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("cannot read the property file {shown}: {e}"))?;
        Properties::parse(&text, &shown.to_string())
    }

    /// Reads `text`, which came from `source`.
    pub fn parse(text: &str, source: &str) -> Result<Properties, String> {
        let mut properties = Properties::default();
        for (number, line) in logical_lines(text) {
            let place = format!("{source}, line {number}");
            let (name, value) = split(&line).map_err(|what| format!("{place}: {what}"))?;
            properties.put(name, value, place);
        }
        Ok(properties)
    }

    /// Sets `name`, which was given at `place`, replacing any earlier value.
    pub fn set(&mut self, name: &str, value: impl fmt::Display, place: &str) {
        self.put(name.to_string(), value.to_string(), place.to_string());
    }

    /// Parses `NAME=VALUE` from the command line.
    pub fn set_pair(&mut self, pair: &str) -> Result<(), String> {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(format!(
                "{pair:?} is not a property; write it as NAME=VALUE"
            ));
        };
        self.set(name.trim(), value.trim(), "the command line");
        Ok(())
    }

    fn put(&mut self, name: String, value: String, place: String) {
        self.all.retain(|property| property.name != name);
        self.all.push(Property { name, value, place });
    }

    /// Returns these properties, overridden by those of `over`.
    pub fn with(&self, over: &Properties) -> Properties {
        let mut merged = self.clone();
        for p in &over.all {
            merged.put(p.name.clone(), p.value.clone(), p.place.clone());
        }
        merged
    }

    /// Returns the value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.all.iter().find(|property| property.name == name);
        found.map(|property| property.value.as_str())
    }

    /// Returns all names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|property| property.name.as_str())
    }

    /// Returns the place at which `name` was set.
    pub fn place(&self, name: &str) -> &str {
        let found = self.all.iter().find(|property| property.name == name);
        found.map_or("nowhere", |property| property.place.as_str())
    }

    /// Returns the value of `name` as `T`, or `default` if it is not set. `what` describes a valid
    /// value for errors.
    pub fn value<T: FromStr>(&self, name: &str, default: T, what: &str) -> Result<T, String> {
        let Some(text) = self.get(name) else {
            return Ok(default);
        };
        text.trim().parse().map_err(|_| {
            format!(
                "{name} is {text:?}, but must be {what} ({})",
                self.place(name)
            )
        })
    }
}

/// Returns lines joined with their continuations, without comments and empty ones, and the number
/// of each one's first line.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut open: Option<(usize, String)> = None;
    // A line ends with \n, \r or both.
    let unified = text.replace("\r\n", "\n").replace('\r', "\n");
    for (at, line) in unified.split('\n').enumerate() {
        let line = line.trim_start_matches([' ', '\t', '\x0C']);
        if open.is_none() && (line.is_empty() || line.starts_with(['#', '!'])) {
            continue;
        }
        let (number, mut whole) = open.take().unwrap_or((at + 1, String::new()));
        let backslashes = line.len() - line.trim_end_matches('\\').len();
        if backslashes % 2 == 1 {
            whole.push_str(&line[..line.len() - 1]);
            open = Some((number, whole));
        } else {
            whole.push_str(line);
            lines.push((number, whole));
        }
    }
    lines.extend(open);
    lines
}

/// Splits a line into name and value, unescaped.
fn split(line: &str) -> Result<(String, String), String> {
    let is_space = |c: char| matches!(c, ' ' | '\t' | '\x0C');
    let mut escaped = false;
    let mut end = line.len();
    for (at, c) in line.char_indices() {
        if !escaped && (is_space(c) || c == '=' || c == ':') {
            end = at;
            break;
        }
        escaped = !escaped && c == '\\';
    }
    let (name, rest) = line.split_at(end);
    let rest = rest.trim_start_matches(is_space);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    let value = value.trim_start_matches(is_space);
    if name.is_empty() {
        return Err(format!("{line:?} has no name before its value"));
    }
    Ok((unescape(name)?, unescape(value)?))
}

fn unescape(text: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            plain.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => plain.push('\t'),
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('f') => plain.push('\x0C'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok();
                let c = code.filter(|_| digits.len() == 4).and_then(char::from_u32);
                plain.push(c.ok_or_else(|| format!("\\u{digits} is not a character"))?);
            }
            Some(c) => plain.push(c),
            None => {}
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let properties = Properties::parse(text, "test").expect(text);
        let names: Vec<String> = properties.names().map(String::from).collect();
        names
            .into_iter()
            .map(|name| {
                let value = properties.get(&name).expect("it is there").to_string();
                (name, value)
            })
            .collect()
    }

    /// The examples in Java's documentation of the format are parsed as described there.
    #[test]
    fn the_syntax_is_javas() {
        for (text, name, value) in [
            ("Truth = Beauty", "Truth", "Beauty"),
            ("  Truth:Beauty", "Truth", "Beauty"),
            ("Truth                    :Beauty", "Truth", "Beauty"),
            ("Truth Beauty", "Truth", "Beauty"),
            ("cheeses", "cheeses", ""),
            ("cheeses=", "cheeses", ""),
            (
                "fruits    apple, banana, \\\n          pear,  \\\n    mango",
                "fruits",
                "apple, banana, pear,  mango",
            ),
            ("\\:\\= = x", ":=", "x"),
            ("a\\ b = c", "a b", "c"),
            ("path=c:\\\\data", "path", "c:\\data"),
            ("a=b=c", "a", "b=c"),
            ("tab=x\\ty", "tab", "x\ty"),
            ("letter=\\u0041\\u00e9", "letter", "A\u{e9}"),
            ("odd=\\z", "odd", "z"),
            ("spaces= kept  ", "spaces", "kept  "),
            ("windows=1\r\n", "windows", "1"),
            ("end=open\\", "end", "open"),
        ] {
            assert_eq!(pairs(text), [(name.into(), value.into())], "{text:?}");
        }
    }

    /// Comments and empty lines are ignored, even if they look like continuations.
    #[test]
    fn comments_are_nothing() {
        let text = "# a=1 \\\n! b=2\n\n   \n\t# c=3\nd=4 # no comment\ne=5\\\\\nf=6";
        let expected = [("d", "4 # no comment"), ("e", "5\\"), ("f", "6")];
        let expected = expected.map(|(name, value)| (name.to_string(), value.to_string()));
        assert_eq!(pairs(text), expected);
    }

    /// The last of two values counts, and properties laid over a file override it.
    #[test]
    fn the_last_value_holds() {
        let file = Properties::parse("a=1\nb=2\na=3", "file").expect("it is well formed");
        assert_eq!(file.get("a"), Some("3"));
        assert_eq!(file.place("a"), "file, line 3");
        let mut over = Properties::default();
        over.set_pair("b = 7").expect("a pair");
        let merged = file.with(&over);
        assert_eq!((merged.get("a"), merged.get("b")), (Some("3"), Some("7")));
        assert_eq!(merged.value("b", 0u64, "a count"), Ok(7));
        assert_eq!(merged.value("c", 9u64, "a count"), Ok(9));
        assert!(over.set_pair("b").is_err_and(|e| e.contains("NAME=VALUE")));
    }

    /// An error names the place and a valid value.
    #[test]
    fn problems_name_their_place() {
        let problem = Properties::parse("a=1\n\nb=\\u00zz", "w.properties").expect_err("no hex");
        assert!(problem.starts_with("w.properties, line 3: "), "{problem}");
        let problem = Properties::parse("=1", "w").expect_err("no name");
        assert!(problem.contains("no name"), "{problem}");
        let file = Properties::parse("recordcount=many", "w").expect("it is well formed");
        let problem = file
            .value("recordcount", 0u64, "a count")
            .expect_err("no number");
        for part in ["recordcount", "\"many\"", "a count", "w, line 1"] {
            assert!(problem.contains(part), "{problem}");
        }
        let problem = Properties::load(Path::new("/nowhere/w")).expect_err("it does not exist");
        assert!(problem.contains("/nowhere/w"), "{problem}");
    }
}
