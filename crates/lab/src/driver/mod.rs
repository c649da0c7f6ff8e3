//! Load on a server that others wrote: a WebSocket server that a file describes (how to log in, subscribe and publish, and where what was
//! published stands in what is delivered), or a broker whose protocol the lab speaks.
//!
//! In reading order: [`description`], a driver's file; [`template`], the texts that clients send; [`message`], what is
//! looked for in what comes; [`codec`], as much of MQTT and NATS as the load takes; [`target`], where the server is;
//! [`link`], one client; [`client`], all connections under load.

mod client;
mod codec;
mod description;
mod link;
mod message;
mod target;
mod template;

pub(crate) use client::{DriverClient, DriverClients};
pub(crate) use description::Driver;
pub use target::DriverArgs;
pub(crate) use target::DriverTarget;

use crate::LabError;
use std::path::Path;

/// The drivers that ship with the program, each with its text.
const SHIPPED: [(&str, &str); 5] = [
    ("centrifugo", include_str!("../../drivers/centrifugo.toml")),
    ("socket-io", include_str!("../../drivers/socket-io.toml")),
    ("mqtt", include_str!("../../drivers/mqtt.toml")),
    ("mqtt5", include_str!("../../drivers/mqtt5.toml")),
    ("nats", include_str!("../../drivers/nats.toml")),
];

/// Reads the driver of this name, or of this file, which a path without a root finds in `folder`.
pub(crate) fn read(name: &str, folder: &Path) -> Result<Driver, LabError> {
    let is_file = name.ends_with(".toml") || name.contains('/');
    let text = match SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
        Some((_, text)) if !is_file => (*text).to_owned(),
        None if !is_file => {
            let known = SHIPPED.map(|(name, _)| name).join(", ");
            let what = format!(
                "unknown driver {name:?}; a file is named with its path, and the drivers in this program are {known}"
            );
            return Err(LabError::Usage(what));
        }
        _ => std::fs::read_to_string(folder.join(name)).map_err(|error| LabError::Usage(format!("{name}: {error}")))?,
    };
    read_text(name, &text)
}

/// Reads a driver that is written there.
pub(crate) fn read_text(name: &str, text: &str) -> Result<Driver, LabError> {
    Driver::read(text).map_err(|mistake| LabError::Usage(mistake.show(name, text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_driver_can_be_read_and_is_named_as_its_file() {
        for (name, text) in SHIPPED {
            let driver = Driver::read(text).unwrap_or_else(|mistake| panic!("{}", mistake.show(name, text)));
            assert_eq!(driver.name, name);
            assert!(driver.about.ends_with('.'), "{name}: {:?} is no sentence", driver.about);
        }
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/drivers")).unwrap();
        assert_eq!(folder.count(), SHIPPED.len(), "every file of the folder ships");
    }

    #[test]
    fn every_example_of_the_page_can_be_read() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/drivers.md")).unwrap();
        let examples: Vec<&str> =
            page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
        assert!(!examples.is_empty());
        for text in examples {
            Driver::read(text).unwrap_or_else(|mistake| panic!("{}", mistake.show("drivers.md", text)));
        }
        let (_, shown) = page.split_once("```text\n").unwrap();
        let mistaken = examples_of_mistake(&page);
        let mistake = Driver::read(&mistaken).map(|driver| driver.name).unwrap_err().show("my-server.toml", &mistaken);
        assert!(shown.starts_with(&mistake), "{mistake}");
    }

    /// The page's first example with the mistake that the page shows.
    fn examples_of_mistake(page: &str) -> String {
        let text = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        text.replace("\"as\":\"{user}\"", "\"as\":\"{usr}\"")
    }

    #[test]
    fn each_kind_of_mistake_is_shown_with_its_line() {
        let head = "name = \"a\"\nabout = \"A.\"\nsession = { path = \"/ws\" }\n";
        let publish = "publish = { frame = \"{marker}\" }\n";
        let delivery = "delivery = { marker = { pointer = \"/m\" } }\n";
        let with = |rest: &str| format!("{head}{publish}{delivery}{rest}\n");
        let cases = [
            (
                "name = \"a\"\nabout = \"A.\"\nprotocol = \"amqp\"\n".to_owned(),
                "d.toml:3:12: unknown variant `amqp`, expected one of `mqtt`, `mqtt5`, `nats`",
                "amqp",
            ),
            (with("logn = 1"), "d.toml:6:1: unknown field `logn`, expected one of `name`", "logn = 1"),
            (head.to_owned(), "d.toml:1:1: missing field `publish`", ""),
            (with("login = { frame = \"{usr}\" }"), "d.toml:6:19: there is no {usr} here, but {user}", "{usr}"),
            (with("login = { frame = \"{marker}\" }"), "d.toml:6:19: there is no {marker} here", "{marker}"),
            (
                with("login = { frame = \"a\", answer = { has = \"b\" } }"),
                "d.toml:6:35: unknown variant `has`, expected one of `is`, `begins`, `contains`, `pointer`",
                "has",
            ),
            (with("refused = { is = \"a\", begins = \"b\" }"), "d.toml:6:11: wanted exactly 1 element", "refused"),
            (with("refused = { pointer = \"error\" }"), "d.toml:6:11: a JSON pointer begins with `/`", "refused"),
            (with("heartbeat = { every = \"1 h\", frame = \"p\" }"), "d.toml:6:23: must be a time such as", "1 h"),
            (with("heartbeat = { every = \"0s\", frame = \"p\" }"), "d.toml:6:23: must be above 0", "0s"),
            (
                with("token = { request = { path = \"login\" }, at = { pointer = \"/t\" } }"),
                "d.toml:6:30: a path begins with `/`",
                "login",
            ),
            (
                with("token = { request = { path = \"/l\", method = \"post\" }, at = { pointer = \"/t\" } }"),
                "d.toml:6:45: a method is a word such as `POST`",
                "post",
            ),
            (
                with("token = { request = { path = \"/l?{token}\" }, at = { pointer = \"/t\" } }"),
                "d.toml:6:30: there is no {token} here, but {user}, {api_key}, {channel}",
                "{token}",
            ),
            (
                format!("{head}publish = {{ frame = \"hello\" }}\n{delivery}"),
                "d.toml:4:21: must have {marker}",
                "hello",
            ),
            (format!("{head}publish = {{}}\n{delivery}"), "d.toml:4:11: must have one of `frame` and `request`", "{}"),
            (
                format!("{head}publish = {{ request = {{ path = \"/p\", body = \"x\" }} }}\n{delivery}"),
                "d.toml:4:11: a request must have {marker}",
                "\"x\"",
            ),
            (
                format!("{head}{publish}delivery = {{ marker = {{ between = [\"\", \"b\"] }} }}\n"),
                "d.toml:5:23: needs the text before and the text after",
                "between",
            ),
            (
                format!("{}{publish}{delivery}", head.replace("}", ", headers = { Upgrade = \"x\" } }")),
                "d.toml:3:40: this header is the lab's to write",
                "Upgrade",
            ),
        ];
        let wrong = cases.iter().filter_map(|(text, beginning, line)| {
            let shown = match Driver::read(text) {
                Ok(_) => "nothing is wrong".into(),
                Err(mistake) => mistake.show("d.toml", text),
            };
            let is_right = shown.starts_with(beginning) && shown.contains(line);
            (!is_right).then(|| format!("{shown}\n--- is not {beginning}, or lacks {line}"))
        });
        let wrong: Vec<String> = wrong.collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }
}
