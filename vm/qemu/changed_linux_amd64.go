package qemu

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	pageSize = 4 << 10
	// pagesAtOnce is how many pages are looked at at a time, and copiedAtOnce how
	// many are copied.
	pagesAtOnce  = 8 << 10
	copiedAtOnce = 256
	// maxMappings bounds the mappings of a QEMU, which the guest may have in its hands.
	maxMappings = 64 << 10
)

// Bits of an entry of /proc/PID/pagemap; see proc_pid_pagemap(5).
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageOfFile  = 1 << 61
)

// A mapping is a part of a file in a process's memory.
type mapping struct{ start, end, offset int64 }

// copyChanged writes to dst, which is a copy of ram, the pages that process proc,
// the path of its directory in /proc, has changed in its private mapping of ram. The
// process stands still.
func copyChanged(ctx context.Context, dst *os.File, proc string, ram *os.File) error {
	info, err := ram.Stat()
	if err != nil {
		return err
	}
	all, err := privateMappings(proc, info)
	if err != nil {
		return fmt.Errorf("cannot find guest memory: %w", err)
	}
	pagemap, err := os.Open(proc + "/pagemap")
	if err != nil {
		return fmt.Errorf("cannot find changed memory: %w", err)
	}
	defer func() { _ = pagemap.Close() }()
	mem, err := os.Open(proc + "/mem")
	if err != nil {
		return fmt.Errorf("cannot read guest memory: %w", err)
	}
	defer func() { _ = mem.Close() }()
	var whole int64
	for _, m := range all {
		if m.offset < 0 || m.start < 0 || m.end < m.start || m.end-m.start > info.Size()-m.offset {
			return errors.New("cannot find guest memory: it is mapped beyond its end")
		}
		whole += m.end - m.start
		if err := m.copyChanged(ctx, dst, pagemap, mem); err != nil {
			return fmt.Errorf("cannot read guest memory: %w", err)
		}
	}
	if whole != info.Size() {
		return fmt.Errorf("cannot find guest memory: %d of %d bytes are mapped", whole, info.Size())
	}
	return nil
}

// privateMappings are those of a file, of which info is.
func privateMappings(proc string, info os.FileInfo) ([]mapping, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	maps, err := os.Open(proc + "/maps")
	if err != nil {
		return nil, err
	}
	defer func() { _ = maps.Close() }()
	dev := fmt.Sprintf("%02x:%02x", unix.Major(st.Dev), unix.Minor(st.Dev))
	var all []mapping
	lines := bufio.NewScanner(maps) //nolint:forbidigo // the kernel wrote it
	for n := 0; lines.Scan(); n++ {
		if n == maxMappings {
			return nil, fmt.Errorf("there are more than %d mappings", maxMappings)
		}
		var m mapping
		var mode, device string
		var inode uint64
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s %x %s %d", &m.start, &m.end, &mode, &m.offset, &device, &inode); err != nil {
			continue // [vsyscall] is above what fits
		}
		if device == dev && inode == st.Ino && strings.HasSuffix(mode, "p") {
			all = append(all, m)
		}
	}
	return all, lines.Err()
}

// copyChanged copies the pages of m that are not the file's any more.
func (m mapping) copyChanged(ctx context.Context, dst, pagemap, mem *os.File) error {
	entries := make([]byte, 8*pagesAtOnce)
	buf := make([]byte, copiedAtOnce*pageSize)
	for at := m.start; at < m.end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(pagesAtOnce, (m.end-at)/pageSize)
		if _, err := io.ReadFull(io.NewSectionReader(pagemap, at/pageSize*8, 8*n), entries[:8*n]); err != nil {
			return err
		}
		changed := func(i int64) bool {
			e := binary.NativeEndian.Uint64(entries[8*i:])
			return e&pageSwapped != 0 || e&(pagePresent|pageOfFile) == pagePresent
		}
		for i := int64(0); i < n; {
			if !changed(i) {
				i++
				continue
			}
			j := i + 1
			for j < n && j-i < copiedAtOnce && changed(j) {
				j++
			}
			from, b := at+i*pageSize, buf[:(j-i)*pageSize]
			if _, err := mem.ReadAt(b, from); err != nil {
				return err
			}
			if _, err := dst.WriteAt(b, from-m.start+m.offset); err != nil {
				return err
			}
			i = j
		}
		at += n * pageSize
	}
	return nil
}
