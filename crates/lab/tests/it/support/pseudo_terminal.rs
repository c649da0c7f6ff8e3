//! A program under a pseudo-terminal, and what it draws there.

use rustix::{
    fs::OFlags,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    num::NonZero,
    os::unix::fs::OpenOptionsExt,
    process::{Child, Command, ExitStatus},
    sync::{Arc, Condvar, Mutex},
    thread::JoinHandle,
};

const ROWS: NonZero<u16> = NonZero::new(24).unwrap();
const COLUMNS: NonZero<u16> = NonZero::new(100).unwrap();

#[derive(Default)]
struct Drawn {
    bytes: Vec<u8>,
    has_ended: bool,
}

pub(crate) struct PseudoTerminal {
    keyboard: File,
    child: Child,
    drawn: Arc<(Mutex<Drawn>, Condvar)>,
    reader: JoinHandle<()>,
}

impl PseudoTerminal {
    /// Runs a program with this terminal as its own, which sends it Ctrl-C. `set_up` gets the command and the terminal.
    pub(crate) fn run(program: &str, line: &str, set_up: impl FnOnce(&mut Command, File)) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize { ws_row: ROWS.get(), ws_col: COLUMNS.get(), ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let terminal = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NOCTTY.bits() as i32)
            .open(path.to_str().unwrap())
            .unwrap();
        let mut command = Command::new("setsid");
        // Without a process in between: the program is the one that is waited for.
        command.args(["--ctty", program]).args(line.split_whitespace());
        command.env("TERM", "xterm").env_remove("NO_COLOR").stdin(terminal.try_clone().unwrap());
        set_up(&mut command, terminal);
        let child = command.spawn().unwrap();
        // The last handles of this process to the terminal: what is read ends with the program.
        drop(command);
        let (keyboard, drawn) = (File::from(master), Arc::new((Mutex::<Drawn>::default(), Condvar::new())));
        let (mut screen, told) = (keyboard.try_clone().unwrap(), drawn.clone());
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Linux ends the output of a terminal that nobody has open with an error.
            while let Some(count) = screen.read(&mut bytes).ok().filter(|count| *count > 0) {
                told.0.lock().unwrap().bytes.extend_from_slice(&bytes[..count]);
                told.1.notify_all();
            }
            told.0.lock().unwrap().has_ended = true;
            told.1.notify_all();
        });
        PseudoTerminal { keyboard, child, drawn, reader }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the screen shows something, and returns it.
    pub(crate) fn wait_for(&self, what: impl Fn(&str) -> bool) -> String {
        let mut drawn = self.drawn.0.lock().unwrap();
        loop {
            let screen = screen_of(&drawn.bytes);
            if what(&screen) {
                return screen;
            }
            assert!(!drawn.has_ended, "the program has ended:\n{screen}");
            drawn = self.drawn.1.wait(drawn).unwrap();
        }
    }

    pub(crate) fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// Waits for the program's end; returns what is left on the screen, and every byte that was written.
    pub(crate) fn end(mut self) -> (ExitStatus, String, Vec<u8>) {
        let status = self.child.wait().unwrap();
        self.reader.join().unwrap();
        let bytes = std::mem::take(&mut self.drawn.0.lock().unwrap().bytes);
        (status, screen_of(&bytes), bytes)
    }
}

fn screen_of(bytes: &[u8]) -> String {
    let mut parser = vt100::Parser::new(ROWS, COLUMNS, 0);
    parser.process(bytes);
    parser.screen().contents().trim_end().to_owned()
}
