// Package store keeps what a daemon must not forget in one SQLite file: sandboxes and
// the machines they are on, snapshots and their names, API keys, and the events of each
// sandbox. A row is written before the thing it tells of is made, so that after any death
// of the process what exists is known. The file is never deleted, and one that cannot be
// understood is never changed.
package store
