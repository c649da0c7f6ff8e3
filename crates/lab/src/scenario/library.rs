//! The scenarios that ship with the program: small ones, whose files in `crates/lab/scenarios` are examples as well.

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),*]
    };
}

/// Each by its name, in the order in which they are listed and in which all are run.
pub(super) const SHIPPED: &[(&str, &str)] = shipped![
    "first-message",
    "group",
    "group-ladder",
    "broadcast",
    "direct",
    "direct-open-10k",
    "new-conversations",
    "mixed-day",
    "isolation",
    "streams",
    "faults",
    "cluster-faults",
    "devices-steps",
    "storm",
    "push",
    "ramp-until-it-breaks",
    "scripted-device",
    "popup",
    "popup-short-connections",
    "link-limit",
    "stability",
    "concurrency",
    "exceptions",
];

pub(super) fn find(name: &str) -> Option<&'static str> {
    SHIPPED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_ships() {
        #[allow(clippy::unwrap_used)]
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")).unwrap();
        for file in files.flatten() {
            let name = file.file_name().to_string_lossy().trim_end_matches(".toml").to_owned();
            assert!(find(&name).is_some(), "{name} is not among the shipped scenarios");
        }
    }
}
