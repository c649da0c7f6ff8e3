//! What every store must do, as a suite: the embedded one runs it, the next one will too.
#![doc(hidden)]
