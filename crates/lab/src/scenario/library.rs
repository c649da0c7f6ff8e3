//! The scenarios that ship with the program. Small ones, whose files in `crates/lab/scenarios` are examples as well; and those of
//! `crates/lab/scenarios/full`, which take hours, gigabytes or a quiet machine, and are run by their names alone.

macro_rules! shipped {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../scenarios/", $folder, $name, ".toml")))),*]
    };
}

/// Each by its name, in the order in which they are listed and in which all are run.
pub(super) const SHIPPED: &[(&str, &str)] = shipped!["":
    "first-message",
    "group",
    "group-ladder",
    "broadcast",
    "direct",
    "direct-open-10k",
    "new-conversations",
    "mixed-day",
    "isolation",
    "offline-push",
    "notifications",
    "streams",
    "events",
    "faults",
    "cluster-faults",
    "devices-steps",
    "connect",
    "storm",
    "push",
    "failover",
    "mosquitto",
    "ramp-until-it-breaks",
    "coming-and-going",
    "scripted-device",
    "scripted-device-in-lua",
    "popup",
    "popup-short-connections",
    "popup-thresholds",
    "link-limit",
    "stability",
    "concurrency",
    "exceptions",
];

/// Those at full size, which `all` leaves out.
pub(super) const FULL: &[(&str, &str)] = shipped!["full/":
    "group-search",
    "ceiling",
    "cluster-cost",
    "growth",
    "isolation-full-queues",
    "new-conversations-for-an-hour",
    "devices-to-a-million",
    "stability-two-hours",
    "coming-and-going-for-hours",
    "ramp-to-twenty-thousand",
    "popup-growth",
    "popup-million-users",
    "popup-thresholds-full",
];

pub(super) fn find(name: &str) -> Option<&'static str> {
    SHIPPED.iter().chain(FULL).find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folders_ships() {
        for (folder, list) in [("/scenarios", SHIPPED), ("/scenarios/full", FULL)] {
            let folder = format!("{}{folder}", env!("CARGO_MANIFEST_DIR"));
            #[allow(clippy::unwrap_used)]
            let files = std::fs::read_dir(folder).unwrap();
            for file in files.flatten().filter(|file| file.path().is_file()) {
                let name = file.file_name().to_string_lossy().trim_end_matches(".toml").to_owned();
                assert!(list.iter().any(|(known, _)| *known == name), "{name} is not among the shipped scenarios");
            }
        }
    }
}
