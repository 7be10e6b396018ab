# What a clone needs to be built, tried, tested, measured and installed. `make help` lists it.
PREFIX ?= /usr/local
DESTDIR ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
BIN := $(DESTDIR)$(PREFIX)/bin
LIB := $(DESTDIR)$(PREFIX)/lib
INCLUDE := $(DESTDIR)$(PREFIX)/include
SHARE := $(DESTDIR)$(PREFIX)/share
# Folders that may be there for us alone. User units are looked for in share below every prefix (systemd.unit(5)).
INSTALLED_FOR_C := include lib/pkgconfig share/man/man3
INSTALLED_IN := lib/libfabric share/systemd/user share/man/man1 share/bash-completion/completions share/zsh/site-functions

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

# Where rustup puts cargo, in case it was installed just now.
export PATH := $(PATH):$(HOME)/.cargo/bin

.DEFAULT_GOAL := build
.PHONY: help setup build test models fuzz fuzz-briefly check demo wheel bench bench-wan install install-c uninstall clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## install what building and testing need, where that can be done
	@tools/setup

build: ## build the command and the libraries it preloads or names, side by side in target/release
	@tools/setup --build
	cargo build --release
	@# Links, so that whatever cargo builds next is what is used.
	@ln -sf libmadrigal_syswrap.so $(RELEASE)/libmadrigal-syswrap.so
	@ln -sf libmadrigal_ofi.so $(RELEASE)/libmadrigal-fi.so
	@personalities/capi/link $(RELEASE)/libmadrigal_capi.a $(RELEASE)/libmadrigal.so.0
	@personalities/classic/link $(RELEASE)

test: ## run the tests; at the end: passed, failed, skipped, and why
	@tests/prepare
	tests/all

models: ## explore the state machines of shared memory under a scheduler (EXPLORE=100: percent of the usual runs)
	CARGO_TARGET_DIR=$(TARGET)/models cargo test -p madrigal-shm-ring --features shuttle --lib
	CARGO_TARGET_DIR=$(TARGET)/models cargo test -p madrigal-drivers --features shuttle --lib
	CARGO_TARGET_DIR=$(TARGET)/models cargo test -p madrigal-offers --features shuttle table
	CARGO_TARGET_DIR=$(TARGET)/models cargo test -p madrigal-syswrap --features shuttle --lib
	CARGO_TARGET_DIR=$(TARGET)/models cargo test -p madrigal-capi --features shuttle --lib table

fuzz: build ## random socket programs, plain against wrapped: SECONDS=600 SEED=..
	cargo build --release -p madrigal-fuzz-sockets
	$(RELEASE)/madrigal-fuzz-sockets --seconds $(or $(SECONDS),120) --keep-going $(if $(SEED),--seed $(SEED))

fuzz-briefly: build ## two minutes of them, as `make check` does: the same ones each time, and fresh ones, whose first seed is printed
	cargo build --release -p madrigal-fuzz-sockets
	$(RELEASE)/madrigal-fuzz-sockets --seed 1 --count 8000 --seconds 300 --modes default,eager-first --keep-going
	$(RELEASE)/madrigal-fuzz-sockets --seconds 30 --modes default,eager-first --keep-going

check: ## what must hold before a change is merged: format, lints, tests and those that take longer, documentation
	@tests/prepare
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets -- -D warnings
	tests/all --long
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items

demo: build ## an unmodified redis plain and under Madrigal, and which path it took (half a minute)
	@tools/setup --demo
	@MADRIGAL=$(RELEASE)/madrigal demo/run.py

wheel: build ## the Python package with everything in it: target/wheels/*.whl (docs/python.md)
	python3 -m pip wheel --no-deps -w $(TARGET)/wheels personalities/python

bench-wan: build ## links between daemons over long, lossy lines of a lab against plain TCP: BENCH='--only long'
	bench/wan.py $(BENCH)

bench: build ## measure against plain TCP, and write docs/perf.md; with BENCH='--quick' or '--only redis1' only measure (bench/README.md)
	@tools/setup --bench
	bench/run.py $(or $(BENCH),--page docs/perf.md)

install: $(RELEASE)/madrigal install-c ## install below PREFIX (and DESTDIR): what was built is taken as it is
	install -d $(BIN) $(addprefix $(DESTDIR)$(PREFIX)/,$(INSTALLED_IN))
	install -m 755 $(RELEASE)/madrigal $(BIN)/madrigal
	install -m 755 $(RELEASE)/libmadrigal_syswrap.so $(LIB)/libmadrigal-syswrap.so
	install -m 755 $(RELEASE)/libmadrigal_ofi.so $(LIB)/libfabric/libmadrigal-fi.so
	sed 's|@BIN@|$(PREFIX)/bin|' tools/madrigal/madrigal.service > $(SHARE)/systemd/user/madrigal.service
	$(RELEASE)/madrigal man $(SHARE)/man/man1
	$(RELEASE)/madrigal completions bash > $(SHARE)/bash-completion/completions/madrigal
	$(RELEASE)/madrigal completions zsh > $(SHARE)/zsh/site-functions/_madrigal

$(RELEASE)/madrigal $(RELEASE)/libmadrigal.so.0 $(RELEASE)/libmadrigal-classic.so.0:
	$(MAKE) build

install-c: $(RELEASE)/libmadrigal.so.0 $(RELEASE)/libmadrigal-classic.so.0 ## install only what programs in C need: library, header, pkg-config, manual page
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,$(INSTALLED_FOR_C))
	install -m 755 $(RELEASE)/libmadrigal.so.0 $(LIB)/libmadrigal.so.0
	ln -sf libmadrigal.so.0 $(LIB)/libmadrigal.so
	install -m 644 personalities/capi/include/madrigal.h crates/plugin/include/madrigal-driver.h $(INCLUDE)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' personalities/capi/madrigal.pc.in > $(LIB)/pkgconfig/madrigal.pc
	install -m 755 $(RELEASE)/libmadrigal-classic.so.0 $(LIB)/libmadrigal-classic.so.0
	ln -sf libmadrigal-classic.so.0 $(LIB)/libmadrigal-classic.so
	install -m 644 $(addprefix personalities/classic/include/,madeleine.h fm.h vio.h vaio.h) $(INCLUDE)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' personalities/classic/madrigal-classic.pc.in > $(LIB)/pkgconfig/madrigal-classic.pc
	install -m 644 docs/man/madrigal.3 $(SHARE)/man/man3/madrigal.3

uninstall: ## remove what install put there, and folders that are empty then
	rm -f $(BIN)/madrigal $(LIB)/libmadrigal-syswrap.so $(LIB)/libfabric/libmadrigal-fi.so $(SHARE)/man/man1/madrigal.1 $(SHARE)/man/man1/madrigal-*.1
	rm -f $(SHARE)/systemd/user/madrigal.service $(SHARE)/bash-completion/completions/madrigal $(SHARE)/zsh/site-functions/_madrigal
	rm -f $(LIB)/libmadrigal.so $(LIB)/libmadrigal.so.0 $(INCLUDE)/madrigal.h $(INCLUDE)/madrigal-driver.h $(LIB)/pkgconfig/madrigal.pc $(SHARE)/man/man3/madrigal.3
	rm -f $(LIB)/libmadrigal-classic.so $(LIB)/libmadrigal-classic.so.0 $(addprefix $(INCLUDE)/,madeleine.h fm.h vio.h vaio.h) $(LIB)/pkgconfig/madrigal-classic.pc
	-@cd $(DESTDIR)$(PREFIX) && for folder in bin $(INSTALLED_IN) $(INSTALLED_FOR_C); do \
		test ! -d $$folder || rmdir -p --ignore-fail-on-non-empty $$folder; done

clean: ## remove what was built
	cargo clean
	rm -rf personalities/python/build personalities/python/src/*.egg-info
