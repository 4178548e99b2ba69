//! Reading and writing at a place in a file without a cursor, so that threads share one open file.

use std::fs::File;
use std::io;

/// Fills `into` from `offset_bytes` on.
#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, into: &mut [u8], offset_bytes: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, offset_bytes)
}

/// Writes all of `bytes` from `offset_bytes` on.
#[cfg(unix)]
pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset_bytes)
}

/// Fills `into` from `offset_bytes` on.
#[cfg(windows)]
pub(crate) fn read_exact_at(file: &File, mut into: &mut [u8], mut offset_bytes: u64) -> io::Result<()> {
    while !into.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, into, offset_bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                into = &mut into[count..];
                offset_bytes += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `bytes` from `offset_bytes` on.
#[cfg(windows)]
pub(crate) fn write_all_at(file: &File, mut bytes: &[u8], mut offset_bytes: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, offset_bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                offset_bytes += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
