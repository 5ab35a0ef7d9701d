//! A Rust source as tokens: enough of a scanner for the rules, and no more.
//!
//! Comments, strings and character literals are dropped, so a rule never fires on words in prose.
//! Every token knows its line, the inline modules around it and whether it belongs to test code
//! (an item under `#[cfg(test)]`, `#[cfg(any(test, ..))]` or `#[test]`).

use std::ops::Range;

/// One identifier, number, `::` or other single character.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
    /// Part of an item that only tests compile.
    pub(crate) test: bool,
    /// Index into `Source::scopes`.
    scope: usize,
}

/// One `.rs` file.
pub(crate) struct Source {
    /// Path from the root of the workspace.
    pub(crate) path: String,
    pub(crate) lines: Vec<String>,
    pub(crate) tokens: Vec<Token>,
    scopes: Vec<Vec<String>>,
}

impl Source {
    pub(crate) fn parse(path: &str, text: &str) -> Self {
        let mut source = Self {
            path: path.to_owned(),
            lines: text.lines().map(str::to_owned).collect(),
            tokens: tokens(&blank(text.as_bytes())),
            scopes: vec![Vec::new()],
        };
        source.mark_tests();
        source.mark_scopes();
        source
    }

    /// The text of token `at`, or nothing past the end.
    pub(crate) fn word(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| token.text.as_str())
    }

    /// The text of the token before `at`.
    pub(crate) fn word_before(&self, at: usize) -> &str {
        at.checked_sub(1).map_or("", |before| self.word(before))
    }

    /// The names of the inline modules around token `at`, outermost first.
    pub(crate) fn scope(&self, at: usize) -> &[String] {
        &self.scopes[self.tokens[at].scope]
    }

    fn mark_tests(&mut self) {
        let mut at = 0;
        while at < self.tokens.len() {
            let inner = self.word(at) == "#" && self.word(at + 1) == "!";
            let open = if inner { at + 2 } else { at + 1 };
            if self.word(at) != "#" || self.word(open) != "[" {
                at += 1;
                continue;
            }
            let close = self.matching(open);
            if self.is_test_attribute(open + 1, close) {
                let end = if inner {
                    self.tokens.len()
                } else {
                    self.item_end(close + 1)
                };
                let end = end.min(self.tokens.len());
                for token in &mut self.tokens[at..end] {
                    token.test = true;
                }
                at = end;
            } else {
                at = close + 1;
            }
        }
    }

    fn is_test_attribute(&self, from: usize, to: usize) -> bool {
        let words = || (from..to).map(|at| self.word(at));
        match self.word(from) {
            "test" => true,
            "cfg" => words().any(|word| word == "test") && !words().any(|word| word == "not"),
            _ => false,
        }
    }

    /// The index after the bracket that closes the one at `open`, less one.
    fn matching(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for at in open..self.tokens.len() {
            match self.word(at) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return at;
            }
        }
        self.tokens.len()
    }

    /// The index after the item, field or arm that starts at `at`, its further attributes included.
    fn item_end(&self, mut at: usize) -> usize {
        while self.word(at) == "#" {
            at = self.matching(at + 1) + 1;
        }
        let item = matches!(
            self.word(at),
            "pub" | "fn" | "mod" | "struct" | "enum" | "trait" | "impl" | "use" | "const"
        ) || matches!(
            self.word(at),
            "static" | "type" | "unsafe" | "async" | "extern" | "macro_rules" | "let" | "union"
        );
        while at < self.tokens.len() {
            match self.word(at) {
                "{" => return self.matching(at) + 1,
                "(" | "[" => at = self.matching(at),
                ";" => return at + 1,
                "," if !item => return at + 1,
                ")" | "]" | "}" => return at,
                _ => {}
            }
            at += 1;
        }
        at
    }

    fn mark_scopes(&mut self) {
        // The stack holds, for every open brace, the scope to return to when it closes.
        let mut stack = Vec::new();
        let mut scope = 0;
        for at in 0..self.tokens.len() {
            self.tokens[at].scope = scope;
            match self.word(at) {
                "{" => {
                    stack.push(scope);
                    if at >= 2 && self.word(at - 2) == "mod" {
                        let mut names = self.scopes[scope].clone();
                        names.push(self.word(at - 1).to_owned());
                        self.scopes.push(names);
                        scope = self.scopes.len() - 1;
                    }
                }
                "}" => scope = stack.pop().unwrap_or(0),
                _ => {}
            }
        }
    }
}

/// The comments of a text, by line from 1: what is left when code and other literals are gone.
pub(crate) fn comments(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    for literal in literals(text.as_bytes()) {
        if is_comment(&text[literal.clone()]) {
            let first = 1 + text[..literal.start].matches('\n').count();
            let comment = text[literal].lines().map(str::to_owned);
            lines.extend((first..).zip(comment));
        }
    }
    lines
}

/// The tokens of a text without its comments; a string or character literal is one token.
pub(crate) fn tokens_with_literals(text: &str) -> Vec<String> {
    let words = |code: &str| tokens(code.as_bytes()).into_iter().map(|token| token.text);
    let mut all = Vec::new();
    let mut at = 0;
    for literal in literals(text.as_bytes()) {
        all.extend(words(&text[at..literal.start]));
        at = literal.end;
        if !is_comment(&text[literal.clone()]) {
            all.push(text[literal].to_owned());
        }
    }
    all.extend(words(&text[at..]));
    all
}

fn is_comment(literal: &str) -> bool {
    literal.starts_with("//") || literal.starts_with("/*")
}

/// The text with comments, strings and character literals turned to spaces, lines kept.
fn blank(text: &[u8]) -> Vec<u8> {
    let mut out = text.to_vec();
    for literal in literals(text) {
        for byte in &mut out[literal] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    }
    out
}

/// The comments, strings and character literals of a text, in order.
fn literals(text: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let end = literal_end(text, at);
        if end > at {
            found.push(at..end);
        }
        // A word is passed whole, so that the `r` of `for` never opens a raw string.
        at = if end > at {
            end
        } else {
            word_end(text, at).max(at + 1)
        };
    }
    found
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn word_end(text: &[u8], at: usize) -> usize {
    at + text[at..].iter().take_while(|byte| is_word(**byte)).count()
}

/// The end of the comment or literal that starts at `at`, or `at` when none does.
fn literal_end(text: &[u8], at: usize) -> usize {
    let rest = &text[at..];
    let until = |found: Option<usize>| found.map_or(text.len(), |found| at + found);
    if rest.starts_with(b"//") {
        return until(rest.iter().position(|byte| *byte == b'\n'));
    }
    if rest.starts_with(b"/*") {
        return block_comment_end(text, at);
    }
    let prefix = rest
        .iter()
        .take_while(|byte| matches!(byte, b'b' | b'c' | b'r'))
        .count();
    let hashes = rest[prefix..]
        .iter()
        .take_while(|byte| **byte == b'#')
        .count();
    let quote = rest.get(prefix + hashes).copied();
    let raw = rest[..prefix].ends_with(b"r");
    if prefix <= 2 && quote == Some(b'"') && (raw || hashes == 0) {
        let open = at + prefix + hashes + 1;
        return if raw {
            raw_string_end(text, open, hashes)
        } else {
            quoted_end(text, open, b'"')
        };
    }
    if prefix <= 1 && !raw && hashes == 0 && quote == Some(b'\'') {
        return char_end(text, at, at + prefix + 1);
    }
    at
}

fn block_comment_end(text: &[u8], at: usize) -> usize {
    let mut depth = 0_usize;
    let mut end = at;
    while end < text.len() {
        if text[end..].starts_with(b"/*") {
            depth += 1;
            end += 2;
        } else if text[end..].starts_with(b"*/") {
            depth -= 1;
            end += 2;
            if depth == 0 {
                return end;
            }
        } else {
            end += 1;
        }
    }
    text.len()
}

fn raw_string_end(text: &[u8], open: usize, hashes: usize) -> usize {
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let found = text[open..]
        .windows(close.len())
        .position(|window| window == close);
    found.map_or(text.len(), |found| open + found + close.len())
}

fn quoted_end(text: &[u8], open: usize, quote: u8) -> usize {
    let mut end = open;
    while end < text.len() && text[end] != quote {
        end += if text[end] == b'\\' { 2 } else { 1 };
    }
    (end + 1).min(text.len())
}

/// A quote opens a character literal or a lifetime; a lifetime is left as it is.
fn char_end(text: &[u8], at: usize, open: usize) -> usize {
    match text.get(open) {
        Some(b'\\') => quoted_end(text, open, b'\''),
        Some(first) => {
            let width = match first {
                0xF0.. => 4,
                0xE0.. => 3,
                0xC0.. => 2,
                _ => 1,
            };
            if text.get(open + width) == Some(&b'\'') {
                open + width + 1
            } else {
                at
            }
        }
        None => at,
    }
}

fn tokens(code: &[u8]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut at = 0;
    while at < code.len() {
        let end = if is_word(code[at]) {
            word_end(code, at)
        } else if code[at..].starts_with(b"::") {
            at + 2
        } else {
            at + 1
        };
        if code[at] == b'\n' {
            line += 1;
        } else if !code[at].is_ascii_whitespace() {
            let text = String::from_utf8_lossy(&code[at..end]).into_owned();
            tokens.push(Token {
                text,
                line,
                test: false,
                scope: 0,
            });
        }
        at = end;
    }
    tokens
}
