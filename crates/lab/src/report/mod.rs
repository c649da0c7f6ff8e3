//! What a run leaves behind: lines on the terminal, and with `--report DIR` a page, JSON and CSV, with `--junit FILE` JUnit's XML.
//!
//! All are written from the one [result](crate::result) of the run. In reading order:
//! - `terminal`: the printer of lines and tables;
//! - `output_args`: the options of every command about all this;
//! - `machine`: where the run took place, and whether it had the machine to itself;
//! - `document`: the report as one JSON document;
//! - `junit`: its checks as test cases, for what runs builds;
//! - `index`: a page that leads to the reports of several runs;
//! - `files`: the page, CSV, and where they are written; `page/` has the page's style and script, and uPlot.

pub(crate) mod document;
pub(crate) mod files;
mod index;
mod junit;
mod machine;
mod output_args;
mod terminal;

pub use output_args::OutputArgs;

pub(crate) use document::RunReport;
pub(crate) use index::{INDEX, IndexRow, write_index};
pub(crate) use junit::TestSuite;
pub(crate) use terminal::print_new;
