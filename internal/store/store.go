package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// What can be wrong with a database, to be found with errors.Is.
var (
	// ErrForeign means that the file is not a database of Bouvet's.
	ErrForeign = errors.New("not a database of Bouvet")
	// ErrCorrupt means that the file is damaged.
	ErrCorrupt = errors.New("database is damaged")
	// ErrVersion means that another version of Bouvet wrote the file.
	ErrVersion = errors.New("database is of another version")
	// ErrUnwritable means that the file system is full, or lets nothing be written.
	ErrUnwritable = errors.New("database cannot be written")
	// ErrNotFound means that there is no such row.
	ErrNotFound = errors.New("no such row")
	// ErrExists means that there is such a row already.
	ErrExists = errors.New("row exists already")
	// ErrTooLong means that a text is longer than its bound.
	ErrTooLong = errors.New("text is too long")
)

// A Store is an open database. Its methods are safe for concurrent use; several
// processes may have it open.
type Store struct {
	path string
	rw   *sql.DB // one connection: there is one writer
	ro   *sql.DB
}

// readers is how many reads go on at once.
const readers = 4

// Open opens the database at path, an absolute one in a directory of the user's own. A
// missing one is made, and one of an older version brought up to this one, if owner says
// that no other process has it open; without that, both are ErrVersion. ctx bounds the
// call alone.
func Open(ctx context.Context, path string, owner bool) (*Store, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("cannot open database %.200q: its path must be absolute", path)
	}
	if err := prepare(path, owner); err != nil {
		return nil, fmt.Errorf("cannot open database %s: %w", path, err)
	}
	s := &Store{path: path}
	if err := s.open(ctx, owner); err != nil {
		return nil, fmt.Errorf("cannot open database %s: %w", path, errors.Join(err, s.Close()))
	}
	return s, nil
}

// prepare makes sure that path is a file of ours that holds an SQLite database or nothing.
func prepare(path string, owner bool) (err error) {
	flags := os.O_RDONLY | unix.O_NOFOLLOW
	if owner {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: there is none yet; start bouvet serve once", ErrVersion)
	}
	if err != nil {
		return unwritable(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: it is not a regular file; move it away", ErrForeign)
	case !ok || int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%w: it does not belong to uid %d; move it away, or run as its owner", ErrForeign, os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		// Keys' hashes and sandboxes' tokens are in it.
		if err := f.Chmod(0o600); err != nil {
			return err
		}
	}
	magic := make([]byte, len(sqliteMagic))
	switch n, err := io.ReadFull(f, magic); {
	case errors.Is(err, io.EOF): // a fresh one
		return nil
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case string(magic[:n]) != sqliteMagic:
		return fmt.Errorf("%w: it does not begin as one; move it away to begin anew, nothing is deleted", ErrForeign)
	}
	return nil
}

const sqliteMagic = "SQLite format 3\x00"

// open opens the connections, having looked at the file before anything is changed.
func (s *Store) open(ctx context.Context, owner bool) (err error) {
	if s.rw, err = sql.Open("sqlite", dsn(s.path, "rw")); err != nil {
		return err
	}
	s.rw.SetMaxOpenConns(1)
	if err := s.check(ctx, owner); err != nil {
		return err
	}
	if s.ro, err = sql.Open("sqlite", dsn(s.path, "rw", "query_only(1)")); err != nil {
		return err
	}
	s.ro.SetMaxOpenConns(readers)
	return explain(s.ro.PingContext(ctx))
}

// dsn names the file with what every connection sets.
func dsn(path, mode string, pragmas ...string) string {
	u := url.URL{Scheme: "file", Path: path}
	q := url.Values{"mode": {mode}, "_txlock": {"immediate"}}
	for _, p := range append([]string{"busy_timeout(5000)", "foreign_keys(1)", "synchronous(NORMAL)", "trusted_schema(0)", "cell_size_check(1)"}, pragmas...) {
		q.Add("_pragma", p)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// Close closes the database. What was committed is there.
func (s *Store) Close() error {
	var errs []error
	for _, db := range []*sql.DB{s.ro, s.rw} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// Path returns where the database is.
func (s *Store) Path() string { return s.path }

// change runs do in a transaction. A durable one is on the disk when it returns; others
// survive the death of the process, which is all that is needed of what lives no longer
// than the host is up.
func (s *Store) change(ctx context.Context, durable bool, do func(tx *sql.Tx) error) (err error) {
	conn, err := s.rw.Conn(ctx)
	if err != nil {
		return explain(err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if durable {
		if _, err := conn.ExecContext(ctx, "PRAGMA synchronous=FULL"); err != nil {
			return explain(err)
		}
		defer func() {
			_, rerr := conn.ExecContext(context.WithoutCancel(ctx), "PRAGMA synchronous=NORMAL")
			err = errors.Join(err, explain(rerr))
		}()
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return explain(err)
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback() // the first error tells
		return explain(err)
	}
	return explain(tx.Commit())
}

// explain gives an error of SQLite its kind and the remedy.
func explain(err error) error {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN:
		return unwritable(err)
	case sqlite3.SQLITE_CORRUPT:
		return fmt.Errorf("%w: %w; %s", ErrCorrupt, err, remedyDamage)
	case sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w: %w; %s", ErrForeign, err, remedyDamage)
	case sqlite3.SQLITE_CONSTRAINT:
		return fmt.Errorf("%w: %w", ErrExists, err)
	default:
		return err
	}
}

const remedyDamage = "put back a copy of it, or move it away with its -wal file to begin anew: nothing is deleted"

func unwritable(err error) error {
	return fmt.Errorf("%w: %w; free space on its file system, or let it be written", ErrUnwritable, err)
}
