//! The report of a comparison: one HTML page that needs no network and no script, and each of its
//! pictures as an SVG file.
//!
//! `pictures.rs` draws, `tables.rs` writes tables, and this file assembles the page.

pub(crate) mod date;
mod pictures;
mod tables;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::compare::{Comparison, Outcome};
use crate::error::BenchError;
use crate::plot::{STYLE, escape, file};

/// The style of the page, in addition to that of its pictures.
const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--page:#fff;--text:#1b1b1b;--rule:#d8d8d8;--faint:#f4f4f4;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--page:#161616;--text:#e8e8e8;--rule:#3d3d3d;--faint:#202020;--bad:#ff8a80}}
body{background:var(--page);color:var(--text);font:15px/1.5 system-ui,sans-serif;max-width:80rem;\
margin:0 auto;padding:1.5rem}
h1{font-size:1.6rem;margin:0 0 .5rem}h2{font-size:1.2rem;margin:2.2rem 0 .5rem;border-bottom:1px solid var(--rule)}
h3{font-size:1rem;margin:1.4rem 0 .4rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{background:var(--faint);font-weight:600}td.t,th.t{text-align:left}td.long{white-space:normal;min-width:16rem}
figure{margin:.8rem 0;display:inline-block;vertical-align:top;max-width:100%}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:12px;background:var(--faint);padding:.5rem}
.bad{color:var(--bad);font-weight:600}.note{font-size:13px;max-width:60rem}
";

/// A picture and the name of its file.
#[derive(Debug)]
pub(crate) struct Picture {
    /// The name, without directory and extension.
    name: String,
    svg: String,
}

/// A page and its pictures.
#[derive(Debug)]
struct Page {
    html: String,
    pictures: Vec<Picture>,
}

/// Writes the report of `outcome` to `folder`: `index.html`, and an SVG for each picture. Replaces
/// files of an earlier report with the same names.
pub fn write(comparison: &Comparison, outcome: &Outcome, folder: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(folder).map_err(|e| BenchError::io("make", folder, e))?;
    let page = render(comparison, outcome);
    let put = |name: String, text: &str| {
        // Readers see only complete pages: the file is renamed once it is written.
        let (path, new) = (folder.join(&name), folder.join(format!("{name}.new")));
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|e| BenchError::io("write", &path, e))
    };
    for picture in &page.pictures {
        put(format!("{}.svg", picture.name), &file(&picture.svg))?;
    }
    put("index.html".to_string(), &page.html)
}

/// Writes a section, or nothing if it would be empty.
fn section(html: &mut String, title: &str, about: &str, content: &str) {
    if content.is_empty() {
        return;
    }
    let _ = writeln!(html, "<h2>{}</h2>", escape(title));
    if !about.is_empty() {
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(about));
    }
    html.push_str(content);
}

fn render(comparison: &Comparison, outcome: &Outcome) -> Page {
    let title = escape(&comparison.title);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{PAGE_STYLE}{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n"
    );
    if !comparison.note.is_empty() {
        let _ = writeln!(html, "<p>{}</p>", escape(comparison.note.trim()));
    }
    if comparison.warm_memory.0 > 0 {
        let _ = writeln!(
            html,
            "<p>Before each phase, {} of memory were touched: getting memory from the host of a \
             virtual machine costs more than the stores themselves.</p>",
            crate::units::bytes(comparison.warm_memory.0)
        );
    }
    html.push_str(&tables::progress(comparison, outcome));
    html.push_str(&tables::conditions(comparison, outcome));
    section(&mut html, "Failures", "", &tables::failures(outcome));
    let mut pictures = Vec::new();
    let mut show = |made: Vec<Picture>| {
        let mut content = String::new();
        for picture in made {
            let _ = writeln!(content, "<figure>{}</figure>", picture.svg);
            pictures.push(picture);
        }
        content
    };
    let all = pictures::Pictures::new(comparison, outcome);
    section(
        &mut html,
        "Throughput",
        "Bars are medians of the repeats, whiskers their lowest and highest.",
        &(show(all.throughput()) + &tables::throughput(comparison, outcome)),
    );
    section(
        &mut html,
        "Throughput with more data",
        "",
        &show(all.scaling()),
    );
    section(
        &mut html,
        "Latency",
        "The share of operations that took longer than the time on the axis, in microseconds, over \
         all repeats. Latencies are from the end of one operation to the end of the next of the \
         same thread; those of scans are of 64 entries at a time.",
        &(show(all.latency()) + &tables::latency(outcome)),
    );
    section(
        &mut html,
        "Second by second",
        "The repeat with the median throughput. Seconds in which the store reported stalled \
         writers are marked; point at one for the reason and the duration.",
        &show(all.traces()),
    );
    section(
        &mut html,
        "Bytes written per byte of the user",
        "From the load to the end of the workload, including background work, to all media, by \
         cause. The table of conditions names the source of the counts.",
        &show(all.write_amplification()),
    );
    section(
        &mut html,
        "Space, memory, processor time",
        "Space is the size of the database at the end of a phase per byte of its live keys and \
         values. Private memory excludes a mapped pool; it is the peak of samples 50 ms apart.",
        &(show(all.space()) + &tables::costs(outcome)),
    );
    section(
        &mut html,
        "Recovery after SIGKILL",
        "Seconds until a store, killed right after its last acknowledged write, was open again; \
         every key was then read and compared byte for byte.",
        &show(all.recovery()),
    );
    if let Some(paper) = &comparison.paper {
        let about = format!("At 1/{} of its size. {}", paper.scale, paper.says.trim());
        let rows = tables::paper(paper, comparison, outcome);
        section(
            &mut html,
            &format!("Comparison with the paper: {}", paper.title),
            &about,
            &rows,
        );
    }
    section(&mut html, "Every run", "", &tables::runs(outcome));
    html.push_str("</body></html>\n");
    Page { html, pictures }
}

#[cfg(test)]
mod tests;
