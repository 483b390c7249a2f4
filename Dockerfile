# CPU only. docker build -t clearvit . && docker run --rm -v "$PWD:/data" clearvit diagnose demo photos/
FROM python:3.12-slim
WORKDIR /opt/clearvit
COPY pyproject.toml hatch_build.py README.md LICENSE constraints-cpu.txt ./
COPY src src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    -c constraints-cpu.txt ".[hf,search,demo]" \
    && useradd --create-home clearvit
USER clearvit
ENV HF_HOME=/data/.cache/huggingface CLEARVIT_PROGRESS=1
WORKDIR /data
ENTRYPOINT ["clearvit"]
CMD ["--help"]
