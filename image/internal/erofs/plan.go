package erofs

import (
	"errors"
	"fmt"
	"math"
)

// A plan is the order of the inodes and where each of them goes. Addresses are
// relative to the metadata area until writeTree knows where that begins.
type plan struct {
	order []planned
	files []*Inode // regular files with content
	plain int64    // bytes of blocks for directories and links that are not inline
	meta  int64    // bytes of the metadata area
	stats Stats
}

// planned is an inode and, for a directory, its parent.
type planned struct {
	inode, parent *Inode
}

func newPlan(root *Inode) (*plan, error) {
	p := &plan{}
	count(root)
	// Inode number 0 would be legal, but programs take it for "no file".
	p.meta = inodeSize
	if err := p.visit(root, root); err != nil {
		return nil, err
	}
	p.stats.Inodes = int64(len(p.order))
	if p.stats.Inodes > math.MaxUint32 {
		return nil, errors.New("image has more inodes than the format can number")
	}
	return p, nil
}

// count sets the link counts below dir.
func count(dir *Inode) {
	dir.nlink = 2
	for _, e := range dir.Entries {
		if e.Inode.IsDir() {
			dir.nlink++
			count(e.Inode)
		} else {
			e.Inode.nlink = 0
		}
	}
}

// visit places dir and all below it, parents before children.
func (p *plan) visit(dir, parent *Inode) error {
	list := dir.dirents(parent)
	p.place(dir, parent, direntBytes(list))
	for _, d := range list {
		if d.name == "." || d.name == ".." {
			continue
		}
		n := d.inode
		if len(d.name) > MaxName || d.name == "" {
			return fmt.Errorf("name %.80q is not of 1 to %d bytes", d.name, MaxName)
		}
		p.stats.Names++
		if n.IsDir() {
			if err := p.visit(n, dir); err != nil {
				return err
			}
			continue
		}
		n.nlink++
		if n.nlink > 1 {
			continue
		}
		if len(n.Target) > MaxTarget {
			return fmt.Errorf("target of link %.80q is longer than %d bytes", d.name, MaxTarget)
		}
		if n.fileType() == 0 {
			return fmt.Errorf("%.80q is of a type that images do not hold", d.name)
		}
		p.place(n, nil, int64(len(n.Target)))
		if n.Type() == TypeRegular && n.Size > 0 {
			p.files = append(p.files, n)
		}
	}
	return nil
}

// place gives n its slot. size is the length of what belongs to it outside the
// blocks of files: directory entries or a link's target.
func (p *plan) place(n, parent *Inode, size int64) {
	left := BlockSize - p.meta%BlockSize
	n.inline = size > 0 && inodeSize+size <= max(left, BlockSize/2)
	need := int64(inodeSize)
	if n.inline {
		need += size
	} else {
		p.plain += roundUp(size)
	}
	if need > left {
		p.meta += left
	}
	n.nid = uint64(p.meta / slotSize) //nolint:gosec // never negative
	p.meta += (need + slotSize - 1) &^ (slotSize - 1)
	p.order = append(p.order, planned{n, parent})
	n.ino = uint32(len(p.order)) //nolint:gosec // newPlan checks the number
}
