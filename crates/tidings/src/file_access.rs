//! Who may read what this program writes: messages, keys and addresses are for its own account alone.

use rustix::{fs::Mode, process::umask};
use std::{os::unix::fs::PermissionsExt, path::Path};

/// The permissions that files and folders of this program never give: anything for the group and for others.
const OF_OTHERS: u32 = 0o077;

/// Makes every file and folder that this process creates readable for its own account alone (0600 and 0700), whatever the shell
/// that started it allows.
pub(crate) fn keep_to_this_account() {
    umask(Mode::from_raw_mode(OF_OTHERS));
}

/// What an operator is warned of a folder that other accounts may enter. It is left as it is: its owner may have opened it on purpose,
/// for the account that copies backups away, say. `None`: nobody else may enter, or there is no such folder.
pub(crate) fn warning_if_open(folder: &Path) -> Option<String> {
    let mode = folder.metadata().ok()?.permissions().mode() & 0o777;
    let folder = folder.display();
    (mode & OF_OTHERS != 0).then(|| {
        format!(
            "other accounts of this machine may enter {folder} (mode {mode:04o}), and may read files of earlier versions in it; \
             `chmod -R go= {folder}` closes it"
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_folder_that_others_may_enter_causes_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let warning = |mode: u32| {
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
            warning_if_open(folder.path())
        };
        assert_eq!(warning(0o700), None);
        for open in [0o755, 0o750, 0o701] {
            let text = warning(open).unwrap();
            assert!(text.contains(&format!("mode {open:04o}")) && text.contains("chmod -R go= /"), "{text}");
        }
        assert_eq!(warning_if_open(&folder.path().join("none")), None);
    }
}
