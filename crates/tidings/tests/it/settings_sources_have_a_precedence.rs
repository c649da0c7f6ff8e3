//! Flags override variables, variables override the file. (The unit tests of the settings cover each kind of value.)

use crate::support::*;

#[test]
fn flags_override_variables_override_the_file() {
    let folder = Folder::new();
    let file = folder.path().join("tidings.toml");
    std::fs::write(&file, "token_key = \"of the file\"").unwrap();
    let token = |variable: Option<&str>, flag: Option<&str>| {
        let mut command = folder.program(&["token", "alice", "--lifetime-s", "1000000"]);
        if let Some(key) = variable {
            command.env("TIDINGS_TOKEN_KEY", key);
        }
        if let Some(key) = flag {
            command.args(["--token-key", key]);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).trim().to_owned()
    };
    let signed_with = |token: &str, key: &str| {
        let tokens = tidings_api::auth::TokenVerifier::new(Some(key), None).unwrap();
        tokens.verify(token).is_ok_and(|claims| claims.user == "alice")
    };
    assert!(signed_with(&token(None, None), "of the file"));
    assert!(signed_with(&token(Some("of the variable"), None), "of the variable"));
    assert!(signed_with(&token(Some("of the variable"), Some("of the flag")), "of the flag"));

    std::fs::write(&file, "token_kee = \"misspelt\"").unwrap();
    let output = folder.run(&["token", "alice"]);
    assert!(!output.status.success() && text(&output.stderr).contains("token_kee"), "{}", text(&output.stderr));
}
