// Package archive keeps events that a janitor removes in files of a directory.
//
// Each batch of a janitor is one file, which is never changed: newline-delimited JSON, compressed
// with gzip, one event a line. The name is the time of the batch, the first and the last number of
// its events in the log, and a random part: 20261127T015501.123456Z-1-250-c1f0….ndjson.gz. A file is
// written under a name that begins with a dot, synchronised with the disk, and renamed. After a crash,
// a file with such a name may be left; it may be removed, because its events are still in the
// database.
//
// An event may be in several files: the process died between archive and removal, or the event had
// to stay and was archived again later. Its dispatch ID is the same, and so is its content.
package archive
