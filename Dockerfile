# CPU only. What it writes is yours and stays, weights in .cache too:
# docker build -t clearvit . && docker run --rm --user "$(id -u)" -v "$PWD:/data" clearvit diagnose demo photos/
FROM python:3.12-slim
WORKDIR /opt/clearvit
COPY pyproject.toml hatch_build.py README.md LICENSE constraints-cpu.txt ./
COPY src src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    -c constraints-cpu.txt ".[hf,search,demo]" \
    && useradd --create-home clearvit
USER clearvit
ENV XDG_CACHE_HOME=/data/.cache
WORKDIR /data
ENTRYPOINT ["clearvit"]
CMD ["--help"]
