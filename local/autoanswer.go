package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/wait"
	"github.com/bouvet-run/bouvet/wire"
)

const (
	// answerName is the file in the state directory with what was found, and lockName
	// the one whose lock those hold who look.
	answerName = "driver.json"
	lockName   = "driver.lock"
	// answerMax bounds the file, in bytes.
	answerMax = 64 << 10
	// uncertainTime is how long an answer counts for which a better driver may only
	// have been too slow.
	uncertainTime = 10 * time.Minute
	answerFormat  = 1
	// answersMost is how many answers are kept.
	answersMost = 8
)

// conditions are what an answer depends on: with others it is none.
type conditions struct {
	Format int `json:"format"`
	// Boot is the host's boot, by its boot_id.
	Boot string `json:"boot"`
	User int    `json:"user"`
	// Drivers are those that could have been tried.
	Drivers []string `json:"drivers"`
	// Files are the programs and devices that they need, by name: path, number, size
	// and time of change.
	Files map[string]string `json:"files"`
	// Kernel is the digest of the guests' kernel.
	Kernel string `json:"kernel"`
	// Environment are the variables that say how.
	Environment map[string]string `json:"environment"`
}

// equal compares them in the form in which they are written.
func (c conditions) equal(other conditions) bool {
	a, err1 := json.Marshal(c)
	b, err2 := json.Marshal(other)
	return err1 == nil && err2 == nil && bytes.Equal(a, b)
}

// An answer is the best driver and where that holds.
type answer struct {
	Conditions conditions `json:"conditions"`
	Driver     string     `json:"driver"`
	Accel      string     `json:"accel,omitempty"`
	Tried      time.Time  `json:"tried"`
	// Uncertain means that a better one may only have been too slow.
	Uncertain bool `json:"uncertain,omitempty"`
}

func (a *answer) fresh() bool {
	age := time.Since(a.Tried)
	return !a.Uncertain || age >= 0 && age < uncertainTime
}

// answers keeps what was found in a state directory: an answer for each of the
// conditions that programs have met since the host's boot, the last first.
type answers struct{ dir string }

// An answerFile is the form in which they are written.
type answerFile struct {
	Answers []answer `json:"answers"`
}

// read returns the answer that holds now.
func (s answers) read(now conditions) (answer, bool) {
	for _, a := range s.load().Answers {
		if a.Conditions.equal(now) {
			return a, a.fresh()
		}
	}
	return answer{}, false
}

// load reads the file. One that cannot be understood holds no answer.
func (s answers) load() (found answerFile) {
	// Without O_NONBLOCK a FIFO of that name would hold up everybody.
	f, err := os.OpenFile(filepath.Join(s.dir, answerName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return answerFile{}
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, answerMax)) //nolint:forbidigo // limited; our own file
	if err != nil || wire.Decode(data, &found) != nil {
		return answerFile{}
	}
	return found
}

// write adds an answer. The caller holds the lock.
func (s answers) write(a *answer) (err error) {
	file := answerFile{Answers: []answer{*a}}
	for _, old := range s.load().Answers {
		if old.Conditions.Boot == a.Conditions.Boot && !old.Conditions.equal(a.Conditions) && len(file.Answers) < answersMost {
			file.Answers = append(file.Answers, old)
		}
	}
	data, err := json.Marshal(file)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", answerName, err)
	}
	// The name of the file is that of a writer who was killed, too.
	temp := filepath.Join(s.dir, answerName+".tmp")
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot write %s: %w", answerName, err)
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", answerName, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot write %s: %w", answerName, err)
			_ = os.Remove(temp)
		}
	}()
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(s.dir, answerName))
}

// lock waits until nobody else is trying.
func (s answers) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the choice of a driver: %w", err)
	}
	err = wait.Until(ctx, func() (bool, error) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot lock the choice of a driver: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// identity tells a file from another one, and from itself after a change. That there
// is none is one too.
func identity(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	id := fmt.Sprintf("%s %s", path, info.Mode())
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		id += fmt.Sprintf(" %d:%d %d %d:%d", st.Dev, st.Ino, st.Rdev, st.Uid, st.Gid)
	}
	if info.Mode().IsRegular() { // a device's time says nothing
		id += fmt.Sprintf(" %d %d", info.Size(), info.ModTime().UnixNano())
	}
	return id
}
