//! Programs in Lua, as far as a file can be wrong about them.

use mlua::Lua;

/// Whether it is a program.
///
/// # Errors
/// What Lua says of it.
pub(crate) fn check(program: &str) -> Result<(), String> {
    Lua::new().load(program).set_name("=lua").into_function().map(drop).map_err(|error| first_line(&error))
}

/// What Lua says, without the calls that led there.
pub(crate) fn first_line(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::RuntimeError(text) => text.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string(),
    };
    text.lines().next().unwrap_or_default().trim_start_matches("lua:").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_be_read_is_told_with_its_line() {
        assert_eq!(check("bind()\nwait('1s')"), Ok(()));
        assert!(check("bind()\nbind(").unwrap_err().contains("2:"));
    }
}
