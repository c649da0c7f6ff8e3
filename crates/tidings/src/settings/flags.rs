//! The settings as command-line flags, derived from the settings' own documentation.

use super::{FILE, Settings, disclosure::Sources};
use anyhow::{Context, Result};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use std::path::{Path, PathBuf};

/// Flags for every setting, and the file that the rest comes from.
#[derive(Debug, Clone, Default)]
pub(crate) struct SettingArgs {
    file: Option<PathBuf>,
    /// (table, name, text) of the flags that were given.
    given: Vec<(String, String, String)>,
}

impl SettingArgs {
    /// Reads all sources.
    pub(crate) fn load(&self) -> Result<Settings> {
        Ok(self.load_with_sources()?.0)
    }

    /// Reads all sources. Returns which of them each setting is from, too.
    pub(crate) fn load_with_sources(&self) -> Result<(Settings, Sources)> {
        let file = match &self.file {
            Some(file) => Some(file.as_path()),
            None => Some(Path::new(FILE)).filter(|file| file.exists()),
        };
        let read = |file: &Path| std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()));
        let text = file.map(read).transpose()?;
        let variable = |name: &str| std::env::var(name).ok();
        let settings = Settings::gather(text.as_deref(), variable, &self.given).with_context(|| match file {
            Some(file) => format!("in the settings ({}, TIDINGS_… variables and flags)", file.display()),
            None => "in the settings".into(),
        })?;
        let sources = Sources::find(&settings, text.as_deref(), variable, &self.given);
        Ok((settings, sources))
    }
}

/// Every setting as a flag, with its documentation and default.
pub(crate) fn help() -> String {
    let mut text = String::from(
        "A flag overrides its variable (--http-listen: TIDINGS_HTTP_LISTEN), a variable overrides the file.\n",
    );
    let mut table = None;
    for setting in Settings::describe() {
        if table.replace(setting.table) != Some(setting.table) {
            match setting.table {
                "" => text.push_str("\nSettings:\n"),
                table => text.push_str(&format!("\nSettings of [{table}]:\n")),
            }
        }
        let default = if setting.is_set { format!(" [default: {}]", setting.value) } else { String::new() };
        text.push_str(&format!("  --{} <VALUE>\n          {}{default}\n", setting.flag(), setting.doc.join(" ")));
    }
    text
}

impl Args for SettingArgs {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env("TIDINGS_CONFIG")
            .value_parser(clap::value_parser!(PathBuf))
            .help(format!("The settings file; by default {FILE} if that exists"));
        // Hidden: ninety lines of settings would bury the help of a command.
        let flags = Settings::describe()
            .into_iter()
            .map(|setting| Arg::new(setting.flag()).long(setting.flag()).value_name("VALUE").hide(true));
        command.arg(file).args(flags).after_help(
            "Every setting is a flag, too, such as --http-listen: `tidings serve --help-settings` lists them.\n\
             `tidings config` prints them all as a file to start from.",
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = SettingArgs::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.file = matches.get_one::<PathBuf>("config").cloned();
        self.given = Settings::describe()
            .into_iter()
            .filter_map(|setting| {
                let text = matches.get_one::<String>(&setting.flag())?.clone();
                Some((setting.table.to_owned(), setting.name.to_owned(), text))
            })
            .collect();
        Ok(())
    }
}
